"""No module of the package imports itself indirectly, not even for its types."""

from graphlib import TopologicalSorter


def test_no_file_is_in_a_circle_of_imports() -> None:
    import grimp

    graph = grimp.build_graph("bwtui", cache_dir=None)
    assert "bwtui.tui.app" in graph.modules
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # This raises CycleError, which names the cycle.
    TopologicalSorter(imports).prepare()
