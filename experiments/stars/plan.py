"""The runs of the study: recipe, changes, seed. A group is one question; `groups()` lists them in the order of their weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from experiments.study import Named

# no mask: rows are padded on the right, which a causal model cannot see; bf16 products with fp32 masters, one compiled step,
# passes replayed as CUDA graphs
FAST = ("data.padding=plain", "precision=bf16", "compile=true", "graph=true", "save.best=false", "validate.radius=0")
POST_SANDWICH, PRE_SANDWICH, PRE, POST = "[input, residual]", "[input, output]", "[input]", "[residual]"
PLACES = {"post-sandwich": POST_SANDWICH, "pre-sandwich": PRE_SANDWICH, "pre": PRE, "post": POST}
RELEASED = "{kind: jacobian, mode: released, weight: %s, weighting: convex, start: 2001}"
EXACT = "{kind: jacobian, mode: exact, weight: %s, weighting: convex, start: 2001}"
ONCE_SOLVED = "{kind: jacobian, mode: %s, weight: %s, weighting: convex, start_accuracy: 0.99}"
FIXED = "depth={kind: fixed, depth: 4}"
RANDOM_7 = "depth={kind: log-normal, mu: 2.0, sigma: 0.7, least: 1, most: 100}"
BRIEF_DEPTH = "depth={kind: poisson, mean: 5, least: 1, most: 30}"
KINDS = ("layer", "rms", "simple")  # of norms
AROUND = ((1, 0), (0, 1), (1, 1))  # layers of prelude and of coda
L2 = "penalties=[{kind: state-change, weight: %s, weighting: add}]"

# what is run once more for the path of its states: group and label
AGAIN = {
    "no part": ("ablation", "none"),
    "no part, penalty": ("ablation", "penalty"),
    "all parts": ("ablation", "injection + embedding norm + every step"),
    "all parts, penalty": ("target", "addition-stable"),
    "paper, penalty": ("main", "random + penalty"),
}


@dataclass(frozen=True)
class Run(Named):
    """One training. `label` says what differs from the others of its group."""

    group: str
    label: str
    recipe: str
    changes: tuple[str, ...]
    seed: int

    @property
    def kind(self) -> str:
        """The group, how many updates, and how deep they are: what decides how long it takes."""
        return " ".join([self.group, *(change for change in self.changes if change.startswith(("updates=", "depth=")))])


def paper(group: str, label: str, *changes: str, seed: int = 0, updates: int = 10_000) -> Run:
    """Returns a run with the study's own settings: dropout 0.1, lr 1e-4, batch 512, cosine after 2,000 updates."""
    cut = () if updates == 10_000 else (f"updates={updates}", f"schedule.warmup={updates // 5}")
    return Run(group, label, "stars-addition", (*FAST, "validate.every=1000", *cut, *changes), seed)


def ours(group: str, label: str, *changes: str, seed: int = 0) -> Run:
    """Returns a run with the settings of `addition-stable`: no dropout, lr 5e-4, batch 256, 2,500 updates."""
    return Run(group, label, "addition-stable", (*FAST, *changes), seed)


def brief(group: str, label: str, *changes: str, seed: int = 0) -> Run:
    """Returns a run of the paper's model at our rate and batch (no dropout, lr 5e-4, 256 rows), in 1,200 updates."""
    cut = ("graph=false", "updates=1200", "schedule.decay=360", "validate={every: 150, radius: 0}", "objective={kind: final}")
    parts = ("model.changes.injection={kind: none}", "model.changes.embedding_norm=false")
    return Run(group, label, "addition-stable", (*FAST, *cut, *parts, "penalties=[]", *changes), seed)


def main() -> Iterator[Run]:
    """Random depth and penalty as released, and random depth alone: Post-Sandwich, three seeds, 10,000 updates (the claim)."""
    for seed in range(3):
        yield paper("main", "random + penalty", seed=seed)
    for seed in range(3):
        yield paper("main", "random", "penalties=[]", seed=seed)


def loader() -> Iterator[Run]:
    """The released recipe in the public loader's order (as in the file, every batch four times in a row), in both precisions."""
    yield paper("loader", "in file order, each batch four times", "order={shuffled: false, repeat: 4}")
    yield paper("loader", "in file order, each batch four times, TF32", "order={shuffled: false, repeat: 4}", "precision=tf32")
    yield paper("loader", "shuffled, TF32", "precision=tf32")
    yield paper("loader", "shuffled, each batch four times", "order={repeat: 4}")
    for seed in (1, 2):
        yield paper("loader", "in file order, each batch four times", "order={shuffled: false, repeat: 4}", seed=seed)


def fixed() -> Iterator[Run]:
    """Fixed depth 4 with and without the released penalty, three seeds; half the updates: solved long before."""
    for seed in range(3):
        yield paper("main", "fixed", FIXED, "penalties=[]", seed=seed, updates=5_000)
        yield paper(
            "main", "fixed + penalty", FIXED, f"penalties=[{RELEASED.replace('2001', '1001') % 0.1}]", seed=seed, updates=5_000
        )


def target() -> Iterator[Run]:
    """What is to be right at every depth to 1,000: `addition-stable`, as it is shipped, three seeds."""
    for seed in range(3):
        yield ours("target", "addition-stable", seed=seed)


def ablation() -> Iterator[Run]:
    """Injection × embedding norm × loss at every step without the penalty, and the penalty where they stand or fall together;
    random depth of median 4, three seeds each."""
    cases = [(*case, False) for case in product((True, False), repeat=3)]
    cases += [(True, True, False, True), (False, False, True, True), (False, False, False, True)]
    for seed, (inject, norm, every, penalty) in product(range(3), cases):
        words = {"injection": inject, "embedding norm": norm, "every step": every, "penalty": penalty}
        changes = [] if inject else ["model.changes.injection={kind: none}"]
        changes += [] if norm else ["model.changes.embedding_norm=false"]
        changes += [] if every else ["objective={kind: final}"]
        changes += [] if penalty else ["penalties=[]"]
        label = " + ".join(word for word, on in words.items() if on) or "none"
        yield ours("ablation", label, *changes, seed=seed)


def depths() -> Iterator[Run]:
    """The study's own depth distribution (median 7) with injection and every-step loss, each alone, and neither; three seeds."""
    deep = RANDOM_7.replace("100}", "64}")
    for seed, (inject, every) in product(range(3), product((True, False), repeat=2)):
        changes = [] if inject else ["model.changes.injection={kind: none}", "model.changes.embedding_norm=false"]
        changes += [] if every else ["objective={kind: final}"]
        parts = [word for word, on in {"injection + embedding norm": inject, "every step": every}.items() if on]
        yield ours("depths", "median 7: " + (" + ".join(parts) or "none"), deep, *changes, "penalties=[]", seed=seed)


def weights() -> Iterator[Run]:
    """λ, with random depth, as in the paper's Figure 7; the penalty by exact products; half the updates."""
    for weight in (0.01, 0.05, 0.1, 0.15, 0.2):
        yield paper("weights", f"λ={weight}", f"penalties=[{EXACT.replace('2001', '1001') % weight}]", updates=5_000)


def once_solved() -> Iterator[Run]:
    """λ as in the paper's Figure 7: the exact penalty of every row, from the look at which the task is solved; three seeds.

    With λ = 0 these are the runs of `main` without the penalty.
    """
    for seed, weight in product(range(3), (0.1, 0.2, 0.05, 0.15)):
        penalty = f"penalties=[{ONCE_SOLVED % ('exact', weight)}]"
        yield paper("once_solved", f"λ={weight}", penalty, "validate.every=500", seed=seed)


def alike() -> Iterator[Run]:
    """The penalty on and off at one rate, dropout, batch and depth law: ours, with none of its parts; three seeds.

    Without a penalty, and with that of finite differences, these are the rows "none" and "penalty" of `ablation`.
    """
    parts = ("model.changes.injection={kind: none}", "model.changes.embedding_norm=false", "objective={kind: final}")
    for seed, mode in product(range(3), ("released", "exact")):
        yield ours("alike", f"penalty, {mode}", *parts, f"penalties=[{ONCE_SOLVED % (mode, 0.1)}]", seed=seed)


def norms() -> Iterator[Run]:
    """Twelve norm configurations at fixed depth 4 (Figure 2), 2,000 updates: all had reached 100 % long before."""
    for place, norm in product(("pre", "post", "pre-sandwich", "post-sandwich"), KINDS):
        yield paper("norms", f"{place} {norm}", FIXED, "penalties=[]", *normed(place, norm), updates=2_000)


def normed(place: str, norm: str) -> tuple[str, ...]:
    """Returns the changes that make a placement of norms of one kind."""
    kind = f"{{kind: {norm}, eps: 1e-5}}"
    return (f"model.changes.norm_placement={PLACES[place]}", f"model.changes.norm={kind}", f"model.changes.final_norm={kind}")


def stacks() -> Iterator[Run]:
    """Prelude and coda (Figure 3), fixed depth 4, on the two sandwiches; with neither they are rows of `norms`."""
    for place, (pre, coda) in product(("pre-sandwich", "post-sandwich"), AROUND):
        yield paper(
            "stacks", f"{place} {pre}+core+{coda}", FIXED, "penalties=[]", *stacked(place, pre, coda), updates=2_000
        )  # fmt: skip


def stacked(place: str, pre: int, coda: int) -> tuple[str, ...]:
    """Returns the changes that put layers before the loop and behind it."""
    return (
        f"model.changes.norm_placement={PLACES[place]}",
        f"model.changes.prelude_layers={pre}",
        f"model.changes.coda_layers={coda}",
    )


def changes() -> Iterator[Run]:
    """The L2 penalty on the last change of the state, at four weights, with fixed and with random depth (Figure 3)."""
    yield paper("changes", "fixed + L2", FIXED, L2 % 1.0, updates=2_000)
    for weight, place in product((0.1, 0.01, 0.001), ("post-sandwich", "pre-sandwich")):
        norms = f"model.changes.norm_placement={PLACES[place]}"
        yield paper("changes", f"{place}, fixed + {weight} L2", FIXED, L2 % weight, norms, updates=2_000)
    yield paper("changes", "random + L2", L2 % 1.0, updates=5_000)
    for weight in (0.1, 0.01):
        yield paper("changes", f"random + {weight} L2", L2 % weight, updates=5_000)


def distributions() -> Iterator[Run]:
    """Random depth: the six settings of Table 1 on the sandwiches, those of Table 3 on pre and post; half the updates,
    three seeds."""
    for seed, (place, written) in product(range(3), PLACES.items()):
        for label, (rule, _) in depth_rules(place).items():
            yield paper(
                "distributions", f"{place} {label}", f"depth={rule}", "penalties=[]", f"model.changes.norm_placement={written}",
                updates=5_000, seed=seed,
            )  # fmt: skip


def depth_rules(place: str) -> dict[str, tuple[str, int]]:
    """Returns the paper's six depth distributions for a placement of norms, each with its mean, about."""
    shared = {
        "log-normal(2.62, 0.6) to 40": ("{kind: log-normal, mu: 2.62, sigma: 0.6, least: 1, most: 40}", 16),
        "poisson(5)": (BRIEF_DEPTH.removeprefix("depth="), 5),
        "poisson(10)": ("{kind: poisson, mean: 10, least: 1, most: 30}", 10),
        "uniform(1, 10)": ("{kind: uniform, least: 1, most: 10}", 5),
    }
    if "sandwich" in place:
        return shared | {
            "log-normal(2, 0.7) to 100": (RANDOM_7.removeprefix("depth="), 9),
            "uniform(1, 40)": ("{kind: uniform, least: 1, most: 40}", 20),
        }
    return shared | {
        "log-normal(3.2, 0.45) to 80": ("{kind: log-normal, mu: 3.2, sigma: 0.45, least: 1, most: 80}", 27),
        "uniform(1, 30)": ("{kind: uniform, least: 1, most: 30}", 15),
    }


def brief_distributions() -> Iterator[Run]:
    """Tables 1 and 3 once more, in runs that are short enough for all 24 of them: the deepest first, a seed after the other."""
    cells = [(place, label, *rule) for place in PLACES for label, rule in depth_rules(place).items()]
    for seed, (place, label, rule, _) in product(range(3), sorted(cells, key=lambda cell: -cell[3])):
        norms = f"model.changes.norm_placement={PLACES[place]}"
        yield brief("brief_distributions", f"{place} {label}", f"depth={rule}", norms, seed=seed)


def brief_norms() -> Iterator[Run]:
    """The twelve layouts of norms at fixed depth 4, for the paths of their states (Figure 2); a layer norm is not named."""
    for norm, place in product(KINDS, PLACES):
        named, changes = (place, normed(place, norm)[:1]) if norm == KINDS[0] else (f"{place} {norm}", normed(place, norm))
        yield brief("brief_norms", named, FIXED, *changes)


def brief_static() -> Iterator[Run]:
    """Prelude and coda, and the L2 penalty, at fixed depth 4, for the paths of their states (Figure 3, left); without either they
    are rows of `brief_norms`."""
    for place, (pre, coda) in product(("pre-sandwich", "post-sandwich"), AROUND):
        yield brief("brief_static", f"{place} {pre}+core+{coda}", FIXED, *stacked(place, pre, coda))
    for place, weight in product(("pre-sandwich", "post-sandwich"), (0.1, 1.0)):
        norms = f"model.changes.norm_placement={PLACES[place]}"
        yield brief("brief_static", f"{place} + {weight:g} L2", FIXED, norms, L2 % weight)


def brief_changes() -> Iterator[Run]:
    """The L2 penalty at smaller weights with random depth on both sandwiches (Figure 3). Without it they are rows of
    `brief_distributions`; of those on post-sandwich this distribution is the one that learns first."""
    for place, weight in product(("post-sandwich", "pre-sandwich"), (0.1, 0.01, 0.001)):
        norms = f"model.changes.norm_placement={PLACES[place]}"
        yield brief("brief_changes", f"{place} + {weight} L2", BRIEF_DEPTH, norms, L2 % weight)


def brief_weights() -> Iterator[Run]:
    """λ of the exact penalty from a sixth of the updates on, as the paper has it, and once the task is solved (Figures 5, 7)."""
    begins = {"early": "start: 201", "once solved": "start_accuracy: 0.99"}
    for weight, (start, begun) in product((0.05, 0.1, 0.15, 0.2), begins.items()):
        penalty = f"{{kind: jacobian, mode: exact, weight: {weight}, weighting: convex, {begun}}}"
        yield brief("brief_weights", f"λ={weight} {start}", BRIEF_DEPTH, f"penalties=[{penalty}]")


def paths() -> Iterator[Run]:
    """Runs of other groups once more, seed 0, for the paths of their states (Figure 5): the penalty off and on with none of our
    parts and with all of them, and the paper's own settings."""
    first = {(run.group, run.label): run for group in (target, main, ablation) for run in group() if run.seed == 0}
    for label, place in AGAIN.items():
        yield replace(first[place], group="paths", label=label)


QUESTIONS = (
    target, main, loader, fixed, ablation, alike, depths, weights, once_solved, norms, stacks, changes, distributions,
    brief_distributions, brief_norms, brief_static, brief_changes, brief_weights, paths,
)  # fmt: skip
GROUPS: dict[str, Callable[[], Iterator[Run]]] = {question.__name__: question for question in QUESTIONS}
