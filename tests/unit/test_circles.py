"""No file of the package imports itself by way of others, not even for its types."""

from graphlib import TopologicalSorter

import grimp


def test_no_file_is_in_a_circle_of_imports() -> None:
    graph = grimp.build_graph("bwtui", cache_dir=None)
    assert "bwtui.tui.app" in graph.modules
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # Raises CycleError, which names the circle.
    TopologicalSorter(imports).prepare()
