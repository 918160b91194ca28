"""Wrappers: policies that change the behaviour of another policy.

A wrapper restricts the offer, asks the policy inside for the places that are left, and passes reports on. Wrappers can
be nested. A wrapper that excludes clients belongs outside one that guarantees turns: Eligible around WithGuarantee
never selects a client that is not allowed; the other way round it does when such a client is owed a turn.

`make_policy` builds them from plain settings, for plans, files and the command line:

    make_policy("cool-down", 40, policy="quota", rounds=2, settings={
        "policy": "rbcsf", "settings": {"speed_weight": 5.0}, "groups": [...], "least": {"phones": 2}})

This package is private: use what `turnout.policies` exports.
"""
