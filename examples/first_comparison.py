# %% [markdown]
# # A first comparison
#
# Three policies select 8 of 40 simulated clients per round. The notebook plays them, puts all rounds into one table of
# pandas, and draws how long rounds take and who is left out. It needs `pip install '.[plots,tables]'`.
#
# `first_comparison.py` and `first_comparison.ipynb` have the same cells; `python tests/notebooks.py` writes the latter.

# %%
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

from turnout.lab import RunPlan, RunStore, sweep

# %% [markdown]
# ## Play
#
# A *plan* determines a run completely: policy, settings, world, seed and number of rounds. `sweep` plays the plans that
# the store does not hold yet, so this cell can be repeated, or extended, at no cost.

# %%
ROUNDS, SEEDS = 150, 3
policies = {
    "FairPace": ("fair-pace", {"guaranteed_rate": 0.15}),
    "RBCS-F, weight 20": ("rbcsf", {"speed_weight": 20.0}),
    "random": ("random", {}),
}
plans = [
    RunPlan(policy, ROUNDS, seed, settings, label=label)
    for label, (policy, settings) in policies.items()
    for seed in range(SEEDS)
]
store = RunStore(Path(mkdtemp()) / "runs.turnout")
runs = sweep(plans, store, workers=1)
print(f"{len(runs)} runs in {store.path.name}")

# %% [markdown]
# ## Speed: one row per run and round
#
# The settings of a run are columns, so that everything can be grouped by them.

# %%
rounds = store.to_pandas("rounds")
speed = rounds.groupby("label", sort=False)["seconds"].agg(["mean", "median", "max"]).round(2)
print(speed)

# %% [markdown]
# ## Fairness: one row per run and client
#
# FairPace guarantees a turn in 15 % of the rounds in which a client is available.

# %%
clients = store.to_pandas("clients")
clients["share"] = clients["turns"] / clients["available_rounds"]
fairness = clients.groupby("label", sort=False)["share"].agg(["min", "mean", "max"]).round(3)
print(fairness)

# %% [markdown]
# ## Both in one figure

# %%
figure, (time, share) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for label, own in rounds.groupby("label", sort=False):
    by_round = own.groupby("round")["elapsed_seconds"].mean() / 60
    time.plot(by_round.index, by_round, label=label)
for label, own in clients.groupby("label", sort=False):
    share.plot(sorted(own.groupby("client")["share"].mean()), label=label)
share.axhline(0.15, color="black", linestyle=":", linewidth=1, label="guaranteed")
time.set(title="Time", xlabel="round", ylabel="minutes")
share.set(title="Shares", xlabel="clients, by share", ylabel="share of available rounds")
share.legend()
figure.savefig(store.path.parent / "comparison.png")

# %% [markdown]
# The same comparison on the command line, with confidence intervals, data and figures in a folder:
#
# ```console
# $ turnout simulate fair-pace rbcsf random --rounds 150 --seeds 3 --out comparison
# ```

# %%
store.close()
