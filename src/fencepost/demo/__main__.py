"""python -m fencepost.demo"""

from fencepost.demo.command import command

command(prog_name="python -m fencepost.demo")
