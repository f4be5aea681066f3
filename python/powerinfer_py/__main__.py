"""`python -m powerinfer_py` is the command `powerinfer`."""

from powerinfer_py.cli import main

main()
