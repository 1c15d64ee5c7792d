"""``python -m bwtui``, by which one command of bwtui runs another."""

from bwtui.entry import main

if __name__ == "__main__":
    main()
