"""A transactional producer's threads, which commit or abort, and a placeholder for the producer."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from bwtui.errors import BwtuiError, ConnectionFailed, ServiceRefused
from bwtui.kafka.client import AUTHENTICATION_ERRORS, authentication_failed, new_client, unreachable
from bwtui.model.status import ExactlyOnceStatus
from bwtui.sink.delivery_failures import held_back

#: Maximum duration of one call to the broker (seconds), after which other conditions are checked.
_CALL_SECONDS = 5.0
_INIT_SECONDS = 20.0
#: Pause between two checks whether a commit may begin.
_READY_SECONDS = 0.002
#: Period (seconds) and maximum number of commits for the statistics on commit durations.
_SECONDS, _RECENT = 10.0, 2_000
_REFUSALS = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "set -C transaction.timeout.ms=N to at most the brokers' "
    "transaction.max.timeout.ms",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant the relay's user the rights (ACLs) Write and "
    "Describe on its transactional.id, which begins with bwtui-",
    KafkaError._UNSUPPORTED_FEATURE: "upgrade the brokers to 2.5 or later, or omit --exactly-once",
    KafkaError.UNSUPPORTED_VERSION: "upgrade the brokers to 2.5 or later, or omit --exactly-once",
}


def begin_error(error: KafkaError, broker: str) -> BwtuiError:
    """Return the error for transactions that can't be started."""
    if error.code() in _REFUSALS:
        return ServiceRefused(f"Kafka rejects transactions: {error.str()}", _REFUSALS[error.code()])
    if error.code() in AUTHENTICATION_ERRORS:
        return authentication_failed("Kafka", error)
    if error.retriable():
        return unreachable(broker, error)
    return ConnectionFailed(
        f"Kafka can't begin a transaction: {error.str()}",
        "the relay retries; check the brokers' logs",
    )


def begin_producer(config: dict[str, Any], check: Callable[[], None]) -> Producer:
    """Return a producer that may begin transactions; see `TransactionalSink.connect`."""
    producer = new_client(Producer, config)
    check()
    try:
        producer.init_transactions(_INIT_SECONDS)
    except KafkaException as error:
        raise begin_error(error.args[0], config["bootstrap.servers"]) from error
    return producer


class ProducerPlaceholder:
    """Placeholder for the producer until a session has one, and after it has ended."""

    def __len__(self) -> int:
        return 0

    def poll(self, timeout: float) -> int:
        time.sleep(timeout)
        return 0

    def flush(self, timeout: float) -> int:
        return 0

    def list_topics(self, topic: str, timeout: float) -> None:
        """Do nothing: the next producer requests its topics itself."""

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        """Do nothing: there are no messages."""

    def begin_transaction(self) -> None:
        """Refuse: nothing may be sent before the position is known."""
        held_back()

    def produce(self, *args: Any) -> None:
        held_back()


class PendingCommit:
    """One commit in progress.

    Its outcome is unknown if it is abandoned: the next session finds out.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        key: bytes,
        value: bytes,
        stamp: int,
        is_ready: Callable[[], bool],
    ) -> None:
        """Take the position to write to ``topic``: ``key`` and ``value``, at ``stamp`` in Unix milliseconds.

        The commit begins once ``is_ready`` returns True, which `wait` polls.
        """
        self._producer = producer
        self._record = topic, value, key, 0, None, None, stamp
        self._ended = threading.Event()
        self._is_given_up = False
        #: Why it has failed, once it has ended. Only Kafka's own confirmation sets it to None: if the thread
        #: ends in any other way, the transaction may or may not be committed.
        self.error: KafkaError | None = KafkaError(KafkaError._FAIL, "its thread ended before the commit did")
        self._is_ready = is_ready
        self._is_begun = False
        #: The end of its transaction by the monotonic clock.
        self.begun = time.monotonic()
        self._begin_if_ready()

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; return whether it has ended."""
        until = time.monotonic() + timeout
        while not self._begin_if_ready():
            if (remaining := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(remaining, _READY_SECONDS))
        return self._ended.wait(max(0.0, until - time.monotonic()))

    def is_over(self, timeout: float) -> bool:
        """Return whether nothing of an abandoned commit is in progress; it may never have begun."""
        return not self._is_begun or self._ended.wait(timeout)

    def _begin_if_ready(self) -> bool:
        if not self._is_begun and not self._is_given_up and self._is_ready():
            self._is_begun = True
            threading.Thread(target=self._run, name="commit", daemon=True).start()
        return self._is_begun

    def give_up(self) -> None:
        """Stop retrying."""
        self._is_given_up = True

    def _run(self) -> None:
        try:
            self._producer.produce(*self._record)
            while not self._is_given_up:
                error = self._commit()
                if error is None or not error.retriable():
                    self.error = error
                    return
            self.error = KafkaError(KafkaError._TIMED_OUT)
        except (KafkaException, BufferError) as error:
            self.error = _reason(error)
        finally:
            self._ended.set()

    def _commit(self) -> KafkaError | None:
        return _error_of(self._producer.commit_transaction)


class CommitStatistics:
    """Statistics on commits: the main thread records them, any thread may read."""

    def __init__(self) -> None:
        self._count = 0
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def note(self, begun: float) -> None:
        """Record a commit that has just ended; ``begin_producer`` is by the monotonic clock."""
        now = time.monotonic()
        self._count += 1
        self._recent.append((now, now - begun))

    def told(self, identity: str, topic: str) -> ExactlyOnceStatus:
        """Return the statistics, with the transactional id and the topic of positions."""
        recent, now = tuple(self._recent), time.monotonic()
        took = sorted(seconds for at, seconds in recent if at >= now - _SECONDS)
        # If there were more commits than are kept, the period is that of those kept.
        since = min(_SECONDS, now - recent[0][0]) if len(recent) == _RECENT else _SECONDS
        return ExactlyOnceStatus(
            identity,
            topic,
            self._count,
            round(len(took) / since, 1),
            round(took[len(took) // 2], 4) if took else None,
            round(took[len(took) * 99 // 100], 4) if took else None,
        )


class AbortThread:
    """Aborts a failed transaction, and finds out whether another relay has fenced this one."""

    def __init__(self, producer: Producer, is_fenced: Callable[[], str]) -> None:
        self._producer = producer
        self._is_fenced = is_fenced
        #: The message about the relay that has replaced this one, or "".
        self.fenced = ""
        self._thread = threading.Thread(target=self._run, name="abort", daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._producer.purge()
        abort = getattr(self._producer, "abort_transaction", None)
        if abort is None:
            return
        _error_of(abort)
        # Whatever the result of the abort: Kafka also calls a producer fenced if its transaction took too
        # long, and is not contacted at all if nothing had been sent yet.
        with contextlib.suppress(BwtuiError):
            self.fenced = self._is_fenced()


def _error_of(call: Callable[[float], object]) -> KafkaError | None:
    """Call ``call``; return the error, or None on success."""
    try:
        call(_CALL_SECONDS)
    except KafkaException as error:
        return _reason(error)
    except SystemError:
        # Raised by a client if a fatal error is reported within a callback.
        return KafkaError(KafkaError._FENCED, fatal=True)
    return None


def _reason(error: KafkaException | BufferError) -> KafkaError:
    if isinstance(error, KafkaException):
        reason: KafkaError = error.args[0]
        return reason
    return KafkaError(KafkaError._QUEUE_FULL)
