"""The core: finds the clients of the nodes, shows the strategy only the selected ones, and exchanges messages.

It imports none of the parts around it: checks, groups, resume, slots, simulated worlds. `selection` joins them.
This package is private: use what `turnout.adapters.flower` exports.
"""
