"""Injects faults into two processes and a database at every statement, and compares the fleet with a ledger outside.

One process has the fleet open, a second one is its standby, a third one reports beside them. Each reaches the database
through a proxy of its own, which counts the statements of a call and injects the fault at one of them: before the
database gets it, or after it has executed it. A call is repeated until it is answered, by whoever has the fleet then.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count, cycle
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

from narrowing import known
from postgres import Cluster, Proxy
from service.forked import Forker
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import examine
from waiting import MAX_WAIT, wait_until

NAME = "phones"
CLIENTS, COHORT = 12, 5
#: The calls of a round, in their order.
CALLS = ("register", "choose", "report", "report_beside", "report_many", "close")
#: Notes who has made each commit: the name of the connection, which every opening of the fleet has for itself.
AUDIT = f"""
CREATE SCHEMA audit;
CREATE TABLE audit.commits (number BIGINT PRIMARY KEY, epoch BIGINT NOT NULL, name TEXT NOT NULL);
CREATE FUNCTION audit.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
INSERT INTO audit.commits VALUES (NEW.commits, NEW.epoch, current_setting('application_name'))
ON CONFLICT (number) DO UPDATE SET epoch = excluded.epoch;
RETURN NULL; END $$;
CREATE TRIGGER note AFTER UPDATE OF commits, epoch ON turnout_{NAME}.control FOR EACH ROW EXECUTE FUNCTION audit.note();
"""
CUT, KILL, STANDBY = "connection is cut", "process is killed", "standby is killed"
STOP, SILENCE, USURP = "process is stopped", "process is cut off", "second writer opens"
CLOCKS, DATABASE = "clocks jump by an hour", "database is killed"
PRIMARY, ASYNCHRONOUS = "primary is lost, synchronous replica", "primary is lost, asynchronous replica"
#: Only the process that has the fleet open can be missed by a standby.
ALONE = (STOP, SILENCE)
KEEPER = b"synchronous_commit = off"  # the connection of a thread whose statements come at any time


class LostCommitsError(Exception):
    """A process says that the database has lost commits."""


@dataclass
class Ledger:
    """What was acknowledged: the clients, the cohort of each round, and the reported times."""

    clients: list[str] = field(default_factory=list)
    cohorts: dict[int, list[str]] = field(default_factory=dict)
    reports: dict[tuple[int, str], float] = field(default_factory=dict)
    closed: int = 0


class Process:
    """A steered process with its proxies: one for each place where the database may be."""

    def __init__(self, harness: Harness, name: str) -> None:
        self.name, self._stack = name, ExitStack()
        folder = harness.folder / name
        folder.mkdir()
        self.proxies = []
        for number, cluster in enumerate(harness.clusters):
            place = folder / f"proxy-{number}"
            place.mkdir()
            self.proxies.append(self._stack.enter_context(closing(Proxy(cluster.folder, place))))
        hosts = ",".join(str(proxy.folder) for proxy in self.proxies)
        address = f"postgresql:///postgres?host={hosts}&user=turnout&application_name={name}&fleet={NAME}"
        self._output, self._forker = folder / "output", harness.forker
        with Listener(str(folder / "calls")) as listener:
            self.number = harness.forker.start(
                "storage.postgres.steered:run", str(listener.address), address, name, output=self._output
            )
            self.calls: Connection[Any, Any] = self._stack.enter_context(listener.accept())
        self.is_waiting = self._is_stopped = False

    def send(self, name: str, *values: Any, **options: Any) -> None:
        """Makes the process execute a call; one that was killed has no answer."""
        with suppress(BrokenPipeError):
            self.calls.send((name, values, options))
        self.is_waiting = True

    def answer(self) -> tuple[str, Any] | None:
        """Returns the answer, with the name of an error if it is one; None if the process was killed."""
        assert self.calls.poll(MAX_WAIT), f"{self.name} does not answer: {self.text}"
        self.is_waiting = False
        try:
            answer: tuple[str, Any] = self.calls.recv()
        except (EOFError, ConnectionResetError):
            assert "Traceback" not in self.text, self.text
            return None
        return answer

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.number, number)

    def silence(self) -> None:
        """Cuts the process off in silence."""
        for proxy in self.proxies:
            proxy.silence()

    def heal(self) -> None:
        """Ends the silence, and lets the process go on if it was stopped."""
        self.signal(signal.SIGCONT)
        for proxy in self.proxies:
            proxy.heal()

    @property
    def text(self) -> str:
        """What it has written."""
        return self._output.read_text()

    def end(self) -> None:
        """Kills the process, and closes everything of it."""
        if self._forker is not None:
            self.signal(signal.SIGKILL)
            self._forker.wait(self.number)
            self._stack.close()
            self._forker = None  # type: ignore[assignment]


class Harness:
    """A fleet with its processes and its ledger.

    Args:
        forker: Starts the processes.
        folder: Where their sockets are.
        clusters: The places where the database may be; the first has it at the beginning.

    Attributes:
        faults: The number of faults by kind.
        seconds: From a fault until the next answer of any process, by kind.
        passes: How often a fault of a kind was injected at every statement of a call, by kind and call.
    """

    def __init__(self, forker: Forker, folder: Path, *clusters: Cluster) -> None:
        self.forker, self.folder, self.clusters = forker, folder, clusters
        self.primary = clusters[0]
        self.ledger = Ledger()
        self.faults: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.passes: Counter[tuple[str, str]] = Counter()
        self._names, self._times, self._processes = count(), count(1), list[Process]()
        self._places: dict[tuple[str, str], Iterator[tuple[int, str]]] = {}
        self._calls = cycle(CALLS)
        self._databases = ThreadPoolExecutor(1)  # a server ends with the thread that has started it
        self._beside_names = set[str]()
        self._fault: tuple[str, float] | None = None
        self._usurper: Process | None = None
        Scheduler.open(self.primary.address(NAME), settings={"cohort_size": COHORT, "guaranteed_rate": "1/20"}).close()
        self.primary.execute(AUDIT)
        self.writer = self._open(takeover=True)
        assert self._result(self.writer) > 0
        self.standby, self.beside = self._open(), self._start_beside()
        for number in range(CLIENTS):
            self._acknowledge("register", f"client-{number}")

    # Calls

    def step(self, kind: str | None = None) -> bool:
        """Executes the next call, with a fault of a kind; returns whether the fault was injected."""
        call = next(self._calls)
        number = self.ledger.closed + 1
        values: tuple[Any, ...] = (number,)
        if call == "register":
            values = (f"client-{len(self.ledger.clients)}",)
        elif call == "choose":
            values = (number, list(self.ledger.clients))
        elif call != "close":
            left = [client for client in self.ledger.cohorts[number] if (number, client) not in self.ledger.reports]
            reporting = left[: 3 if call == "report_many" else 1]
            values = (number, {client: next(self._times) / 8 for client in reporting})
        if kind is None or (call == "report_beside" and kind in ALONE):
            self._acknowledge(call, *values)
            return False
        key = (kind, "open" if kind == STANDBY else call)
        position, when = next(self._places.setdefault(key, _places()))
        self._arm(kind, self.beside if call == "report_beside" else self.writer, position, when)
        if kind == STANDBY:
            self.writer.signal(signal.SIGKILL)
        self._acknowledge(call, *values)
        was_injected = self._disarm()
        if not was_injected:
            self.passes[key] += position > 1
            self._places[key] = _places()
        return was_injected

    def _acknowledge(self, call: str, *values: Any) -> None:
        """Repeats a call until it is answered, and notes what it has done."""
        name = "report" if call == "report_many" else call
        answer = self._beside(name, *values) if call == "report_beside" else self._repeat(name, *values)
        if self._fault is not None:
            kind, at = self._fault
            self.seconds[kind].append(time.monotonic() - at)
        if call == "register":
            self.ledger.clients.append(values[0])
        elif call == "choose":
            assert len(answer) == COHORT
            self.ledger.cohorts[values[0]] = answer
        elif call == "close":
            self.ledger.closed = values[0]
        else:
            self.ledger.reports |= {(values[0], client): seconds for client, seconds in values[1].items()}

    def _repeat(self, name: str, *values: Any) -> Any:
        while True:
            writer = self.writer
            if not writer.is_waiting:
                writer.send(name, *values)
            if self.standby.calls in wait([writer.calls, self.standby.calls], MAX_WAIT):
                if self._has_taken_over():
                    self._replace(self.standby)
                continue
            answer = writer.answer()
            error, result = answer or ("killed", "")
            if not error:
                return result
            if error in ("killed", "OtherWriterError"):
                while self._usurper is None and not self._has_taken_over():
                    pass
                self._replace(self._usurper or self.standby)
            else:
                self._must_be_repeated(error, result)

    def _beside(self, name: str, *values: Any) -> Any:
        while True:
            self.beside.send(name, *values)
            answer = self.beside.answer()
            error, result = answer or ("killed", "")
            if not error:
                return result
            if error == "killed":
                self.beside.end()
                self.beside = self._start_beside()
            else:
                self._must_be_repeated(error, result)

    @staticmethod
    def _must_be_repeated(error: str, text: str) -> None:
        if "has lost" in text:
            raise LostCommitsError(text)
        assert error == "InterruptedCallError" or "it is unknown whether this call was stored" in text, (error, text)

    # Processes

    def _start(self) -> Process:
        process = Process(self, str(next(self._names)))
        self._processes.append(process)
        return process

    def _start_beside(self) -> Process:
        process = self._start()
        self._beside_names.add(process.name)
        return process

    def _open(self, **options: Any) -> Process:
        process = self._start()
        process.send("open", **options)
        return process

    def _result(self, process: Process) -> Any:
        answer = known(process.answer())
        assert not answer[0], answer
        return answer[1]

    def _has_taken_over(self) -> bool:
        """Waits for the standby to answer; returns whether it has opened the fleet. Otherwise it tries again."""
        answer = self.standby.answer()
        if answer is None:
            self.standby.end()
            self.standby = self._open()
        elif answer[0]:
            self._must_be_repeated(*answer)
            self.standby.send("open")
        return answer is not None and not answer[0]

    def _replace(self, successor: Process) -> None:
        """Goes on with the process that has opened the fleet; the old one must be refused if it lives."""
        old, self.writer, self._usurper = self.writer, successor, None
        if self.standby is successor:
            self.standby = self._open()
        old.heal()
        if old.is_waiting:
            old.answer()
        old.send("write")
        answer = old.answer()
        assert answer is None or answer[0] == "OtherWriterError", answer
        old.end()

    # Faults

    def _arm(self, kind: str, process: Process, position: int, when: str) -> None:
        """Injects a fault at a statement of a process, which is counted from now on."""
        target = self.standby if kind == STANDBY else process
        inject: Callable[[], object] = {
            CUT: lambda: None,
            KILL: lambda: target.signal(signal.SIGKILL),
            STANDBY: lambda: target.signal(signal.SIGKILL),
            STOP: lambda: target.signal(signal.SIGSTOP),
            SILENCE: target.silence,
            USURP: self._usurp,
            CLOCKS: self._change_clocks,
            DATABASE: lambda: self._databases.submit(self._restart_database).result(),
            PRIMARY: lambda: self._databases.submit(self._fail_over).result(),
        }[kind]
        left, lock, local = [position], threading.Lock(), threading.local()

        def rule(message: bytes) -> str | None:
            local.is_keeper = getattr(local, "is_keeper", False) or KEEPER in message
            if local.is_keeper:
                return None
            with lock:
                left[0] -= 1
                return when if left[0] == 0 else None

        def fault() -> bool:
            self._fault = (kind, time.monotonic())
            self.faults[kind] += 1
            inject()
            return kind in (STOP, USURP, CLOCKS)

        self._fault = None
        for proxy in target.proxies:
            proxy.fault, proxy.rule = fault, rule

    def _disarm(self) -> bool:
        for process in self._processes:
            for proxy in process.proxies:
                proxy.rule = lambda _: None
        was_injected, self._fault = self._fault is not None, None
        return was_injected

    def _usurp(self) -> None:
        """Lets another process take over, unless the first one is inside a transaction."""
        other = self._open(takeover=True)
        answer = known(other.answer())
        if answer[0]:
            other.end()
        else:
            self._usurper = other

    def _change_clocks(self) -> None:
        for process in (self.writer, self.standby, self.beside):
            process.signal(signal.SIGUSR1)

    def _restart_database(self) -> None:
        self.primary.kill()
        self.primary.start()

    def _fail_over(self) -> None:
        """Kills the primary, makes the replica the primary, and the other cluster its replica."""
        old, self.primary = self.primary, self._replica
        old.kill()
        self.primary.execute("SELECT pg_promote()")
        old.copy(self.primary)
        old.start()

    @property
    def _replica(self) -> Cluster:
        return next(cluster for cluster in self.clusters if cluster is not self.primary)

    def lose_commits(self) -> None:
        """Plays a round, and loses the primary after another one that an asynchronous replica does not have.

        Each process that has written since must say so.
        """
        for _ in CALLS:
            self.step()
        ledger, newest = deepcopy(self.ledger), self.primary.execute("SELECT pg_current_wal_lsn()")[0]
        wait_until(lambda: self._replica.execute("SELECT pg_last_wal_replay_lsn() >= %s", newest)[0][0])
        self._replica.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self._replica.execute("SELECT pg_reload_conf()")
        wait_until(lambda: not self.primary.execute("SELECT pid FROM pg_stat_replication"))
        for _ in CALLS:
            self.step()
        self._databases.submit(self._fail_over).result()
        self.faults[ASYNCHRONOUS] += 1
        for process, call in ((self.writer, "register"), (self.beside, "report_beside")):
            process.send(call, *(["new"] if call == "register" else [1, {"client-0": 1.0}]))
            answer = known(process.answer())
            assert "commits that were acknowledged: perhaps a replica without them" in answer[1]
            process.signal(signal.SIGKILL)
        self.ledger = ledger
        while not self._has_taken_over():
            pass
        self._replace(self.standby)
        self.beside = self._start_beside()
        assert "a replica has taken the place of the database" in self.writer.text

    # What must hold

    def check(self) -> None:
        """Compares the fleet with the ledger."""
        address, ledger = self.primary.address(NAME), self.ledger
        with FleetReader(address) as reader:
            clients, last = reader.clients, reader.round
            cohorts = {number: reader.history(round=number) for number in ledger.cohorts}
            certified = dict(zip(clients, reader.certificate().turns.tolist(), strict=True))
            closed = [record.round for record in reader.closed_rounds()]
        assert clients == ledger.clients
        assert (closed, last) == (list(range(1, ledger.closed + 1)), ledger.closed)
        turns = {(number, turn.id): turn for number, cohort in cohorts.items() for turn in cohort}
        assert {number: sorted(cohort) for number, cohort in ledger.cohorts.items()} == {
            number: sorted(turn.id for turn in cohort) for number, cohort in cohorts.items()
        }
        assert {key: turn.seconds for key, turn in turns.items() if turn.kind == "arrived"} == ledger.reports
        counted = Counter(client for number, client in ledger.reports if number <= ledger.closed)
        assert certified == {client: counted[client] for client in clients}
        assert [finding for finding in examine(address) if finding.ok is False] == []
        self._check_epochs()

    def _check_epochs(self) -> None:
        """Compares who has made the commits: each epoch is of one process, and none writes after a later one."""
        commits = self.primary.execute("SELECT number, epoch, name FROM audit.commits ORDER BY number")
        own = [(epoch, name) for _, epoch, name in commits if name not in self._beside_names]
        epochs = [epoch for epoch, _ in own]
        assert epochs == sorted(epochs)
        names: Mapping[int, set[str]] = defaultdict(set)
        for epoch, name in own:
            names[epoch].add(name)
        assert all(len(each) == 1 for each in names.values()), names

    def summary(self) -> str:
        """Returns the faults by kind, with the seconds until the next answer, and what was injected everywhere."""
        lines = [f"{sum(self.faults.values())} faults, {len(self.ledger.reports)} reports, 0 lost, 0 doubled"]
        for kind, seconds in sorted(self.seconds.items()):
            passes = sum(1 for of, _ in self.passes if of == kind)
            lines.append(
                f"{kind}: {len(seconds)}, median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s, "
                f"at every statement of {passes} calls"
            )
        return "\n".join(lines)

    def close(self) -> None:
        """Ends all processes."""
        for process in self._processes:
            process.end()
        self._databases.shutdown()


def _places() -> Iterator[tuple[int, str]]:
    for position in count(1):
        yield position, "before"
        yield position, "after"
