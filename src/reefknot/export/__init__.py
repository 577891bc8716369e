"""Networks for other places: C for firmware, and whatever else ships.

Takes     a `.reef` file or a state, a torch module, and an example of its input.
Gives     files that need neither Python nor torch; what they cannot express is one sentence.
Unaware   of methods and of training.

    source.py    a module with the values of a file     trace.py    a module to layers, by torch.fx
    program.py   layers with numpy values, no torch
"""
