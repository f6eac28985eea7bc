"""Model-guided search: launch the single changes, learn from them, and launch what a model thinks best.

Single changes and a few random combinations are launched first. From all launches so far a Gaussian process learns
the log speed-up at each message size, and the settings that it thinks best under the objective, with some credit for
what it does not know, are launched next. The model only proposes: finalists were launched several times.

The kernel is half additive over the dimensions and half falls with the number of dimensions in which two settings
differ, so that effects are shared between settings and combinations can still be better or worse than their parts.
Source: Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", section 2.2 (regression) and 4.2.4
(kernels over discrete features); Ginsbourger et al. 2010 for choosing a batch by believing one's own predictions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from topo_tune.records.nccl_env import DEFAULTS, NcclEnv
from topo_tune.records.search import SearchSpace
from topo_tune.search.candidates import random_settings, starting_candidates
from topo_tune.search.space import CanMeasure, neighbours
from topo_tune.search.strategies.interface import Objective, Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROPOSING_ROUNDS = 3
ROUND_SHARE = 4
"""a proposing round has a fourth of the first round's settings"""
LAST_ROUNDS = (8, 5, 4)
"""settings launched again at the end: each finalist has at least four launches"""

POOL_RANDOM = 800
POOL_BEST = 6
"""random settings, and all neighbours of so many best ones, from which the model chooses"""

NOISE_SD = 0.07
"""launch-to-launch noise of log time; 5-10 % was seen on two-node TCP, 1-3 % on NVLink"""
CURIOSITY = 0.5
"""standard deviations credited to what is not known yet, in proposing rounds only"""
PRICE_PER_VARIABLE = 0.01
"""a dimension must bring one per cent to be preferred to its absence: small recommendations are easier to trust"""


class ModelGuided:
    """Screens, proposes by the model, and launches the best again. A setting that fails once is out."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        budget: int,
        can_measure: CanMeasure | None = None,
        objective: Objective,
    ) -> None:
        self._space, self._can_measure, self._objective = space, can_measure, objective
        self._rng = random.Random(f"model {seed}")
        self._first = starting_candidates(space, seed=seed, count=budget, can_measure=can_measure)
        self._round = 0
        self._gains: dict[NcclEnv, list[Mapping[int, float]]] = {}
        self._failed: set[NcclEnv] = set()

    def suggest(self) -> tuple[NcclEnv, ...]:
        """The starting candidates, then proposals of the model, then the best again."""
        self._round += 1
        last = self._round - 2 - PROPOSING_ROUNDS
        if self._round == 1:
            return self._first
        if not self._gains or last >= len(LAST_ROUNDS):
            return ()
        if last < 0:
            # Where everything was launched already, the best are launched again instead.
            return self._proposals(max(1, len(self._first) // ROUND_SHARE)) or self._best(LAST_ROUNDS[0])
        return self._best(LAST_ROUNDS[last])

    def update(self, trials: tuple[Trial, ...]) -> None:
        """Add the gains; a failure takes the setting out for good."""
        for trial in trials:
            if trial.score is None:
                self._failed.add(trial.env)
                self._gains.pop(trial.env, None)
            elif trial.env not in self._failed:
                self._gains.setdefault(trial.env, []).append(dict(trial.gains))

    def phase(self) -> str:
        """`screen-1`, `screen-2`, ..."""
        return f"screen-{max(1, self._round)}"

    def finalists(self, count: int) -> tuple[NcclEnv, ...]:
        """Those launched most often, and among them the best by the model; never one that failed."""
        ranked = self._best(len(self._gains))
        return tuple(sorted(ranked, key=lambda env: -min(len(self._gains[env]), len(LAST_ROUNDS) + 1)))[
            :count
        ]

    def _best(self, count: int) -> tuple[NcclEnv, ...]:
        """The best of those that were launched, by the model's mean, in random order of launch when cut short."""
        if not self._gains:
            return ()
        envs = sorted(self._gains)
        model = _Model(self._space, self._gains)
        values = self._values(envs, model, curiosity=0.0)
        return tuple(env for _, env in sorted(zip(values, envs, strict=True), key=lambda p: (-p[0], p[1])))[
            :count
        ]

    def _proposals(self, count: int) -> tuple[NcclEnv, ...]:
        pool = self._pool()
        believed = dict(self._gains)
        chosen: list[NcclEnv] = []
        while pool and len(chosen) < count:
            model = _Model(self._space, believed)
            values = self._values(pool, model, curiosity=CURIOSITY)
            best = max(range(len(pool)), key=lambda i: (values[i], pool[i]))
            env = pool.pop(best)
            chosen.append(env)
            # Believing its own prediction, the model sees nothing new in the same corner and looks elsewhere.
            believed[env] = [model.mean_of(env)]
        self._rng.shuffle(chosen)
        return tuple(chosen)

    def _pool(self) -> list[NcclEnv]:
        known = {DEFAULTS, *self._gains, *self._failed}
        around = {
            env
            for best in self._best(POOL_BEST)
            for env in neighbours(self._space, best)
            if env not in known and (self._can_measure is None or self._can_measure(env))
        }
        besides = tuple(sorted(known | around))
        drawn = random_settings(self._space, self._rng, POOL_RANDOM, self._can_measure, besides=besides)
        return sorted({*around, *drawn})

    def _values(self, envs: list[NcclEnv], model: _Model, *, curiosity: float) -> list[float]:
        means, deviations = model.predict(envs)
        values = []
        for i, env in enumerate(envs):
            gains = {size: means[size][i] + curiosity * deviations[size][i] for size in model.sizes}
            moved = sum(variable.names[0] in env.names() for variable in self._space.variables)
            values.append(self._objective(gains) - PRICE_PER_VARIABLE * moved)
        return values


class _Model:
    """One Gaussian process a message size over the settings' dimensions; all share the kernel."""

    def __init__(self, space: SearchSpace, gains: Mapping[NcclEnv, list[Mapping[int, float]]]) -> None:
        import numpy

        self._np = numpy
        self._space = space
        envs = sorted(gains)
        self.sizes = sorted({size for launches in gains.values() for launch in launches for size in launch})
        # The default itself is known: its gain is nothing, by definition.
        self._known = self._codes([DEFAULTS, *envs])
        counts = numpy.array([1e6, *(len(gains[env]) for env in envs)])
        self._observed: dict[int, NDArray[Any]] = {
            size: numpy.array([0.0, *(_mean(gains[env], size) for env in envs)]) for size in self.sizes
        }
        pooled = (
            numpy.concatenate([self._observed[size][1:] for size in self.sizes])
            if self.sizes
            else numpy.ones(1)
        )
        self._signal = max(float(numpy.mean(pooled**2)), NOISE_SD**2)
        matrix = self._kernel(self._known, self._known) + numpy.diag(NOISE_SD**2 / counts)
        self._inverse = numpy.linalg.inv(matrix)

    def predict(self, envs: list[NcclEnv]) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """Size to the mean and to the standard deviation of the log speed-up of each setting."""
        numpy = self._np
        across = self._kernel(self._codes(envs), self._known)
        weights = across @ self._inverse
        variance = numpy.clip(self._signal - numpy.sum(weights * across, axis=1), 0.0, None)
        deviation = numpy.sqrt(variance).tolist()
        means = {size: (weights @ self._observed[size]).tolist() for size in self.sizes}
        return means, dict.fromkeys(self.sizes, deviation)

    def mean_of(self, env: NcclEnv) -> dict[int, float]:
        """Size to the mean log speed-up of one setting."""
        means, _ = self.predict([env])
        return {size: values[0] for size, values in means.items()}

    def _kernel(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
        numpy = self._np
        same = (one[:, None, :] == other[None, :, :]).mean(axis=2)
        differing = (1.0 - same) * one.shape[1]
        kernel: NDArray[Any] = self._signal * (0.5 * same + 0.5 * numpy.exp(-differing / 2.0))
        return kernel

    def _codes(self, envs: list[NcclEnv]) -> NDArray[Any]:
        numpy = self._np
        rows = []
        for env in envs:
            given = env.as_dict()
            row = []
            for variable in self._space.variables:
                value = given.get(variable.names[0])
                row.append(0 if value is None else variable.values.index(value) + 1)
            rows.append(row)
        codes: NDArray[Any] = numpy.array(rows, dtype=numpy.int16)
        return codes.reshape(len(envs), len(self._space.variables))


def _mean(launches: list[Mapping[int, float]], size: int) -> float:
    found = [launch[size] for launch in launches if size in launch]
    return math.fsum(found) / len(found) if found else 0.0
