"""Any order of steps, by a producer and a consumer on a store that fails at will, agrees with a
list per partition.
"""

from __future__ import annotations

from collections import defaultdict

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deltaq import (
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    NewTopic,
    Producer,
    TopicPartition,
)
from tests.depth import depth
from tests.simulation.actors.clients import seen, token_in
from tests.simulation.actors.injection import result_of
from tests.simulation.audit.topic import places
from tests.simulation.harness import ROOT
from tests.simulation.scenario import TOPIC
from tests.simulator.network import Faults
from tests.simulator.world import Machine, World

PARTITIONS = 2
BAD = Faults(lost_request=0.1, lost_answer=0.3, late=0.3, conflict=0.15)
SECONDS = st.floats(0.1, 100)


class Model(RuleBasedStateMachine):
    """`log` is what is known of the present topic: values by partition and offset, from reports and
    from reading.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World(seed=0)
        self.world.__enter__()
        self.machines = 0
        self.sent = 0
        self.pending: set[str] = set()  # sent to the present topic, not reported yet
        self.maybe: set[str] = set()  # of unknown outcome
        self.failed: set[str] = set()
        self.log: dict[int, dict[int, str]] = defaultdict(dict)
        self.position: dict[int, int] = {}
        self.committed: dict[int, set[int]] = {}  # several, where it is unknown which
        self.producer: Producer
        self.consumer: Consumer
        self.at_producer: Machine
        self.at_consumer: Machine

    def teardown(self) -> None:
        try:
            self.world.network.faults = Faults()
            self.flushed()
            self.restart_consumer(clean=False)
            for partition in range(PARTITIONS):
                self.seek(partition, 0)
            while self.read(100):
                pass
            for partition, values in self.log.items():
                assert self.position[partition] > max(values, default=-1), (
                    f"not all of {partition} was read"
                )
        finally:
            self.world.__exit__(None, None, None)

    # --- who takes part ---

    def machine(self, name: str) -> Machine:
        self.machines += 1
        return self.world.machine(f"{name}.{self.machines}")

    @initialize(seed=st.integers(0, 2**32), faults=st.booleans())
    def begin(self, seed: int, faults: bool) -> None:
        self.world.scheduler.random.seed(seed)
        self.create()
        self.restart_producer()
        self.restart_consumer(clean=False)
        self.turn_faults(faults)

    def create(self) -> None:
        machine = self.machine("administrator")
        admin = AdminClient({"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock)
        topic = NewTopic(TOPIC, PARTITIONS)
        self.world.run(lambda: result_of(machine, admin.create_topics([topic])[TOPIC]), machine)

    def restart_producer(self) -> None:
        self.at_producer = self.machine("producer")
        conf = {"bootstrap.servers": ROOT, "linger.ms": 5, "message.timeout.ms": 2_500}
        at = self.at_producer
        self.producer = self.world.run(lambda: Producer(conf, store=at.store, clock=at.clock), at)

    @rule(clean=st.just(True))
    def restart_consumer(self, clean: bool) -> None:
        """Goes on where it committed."""
        if clean:
            self.world.run(self.consumer.close, self.at_consumer)
        at = self.at_consumer = self.machine("consumer")
        conf = {
            "bootstrap.servers": ROOT,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        self.consumer = self.world.run(lambda: Consumer(conf, store=at.store, clock=at.clock), at)
        mine = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        self.world.run(lambda: self.consumer.assign(mine), at)
        self.position = {}

    @precondition(lambda self: self.pending)
    @rule()
    def kill_producer(self) -> None:
        self.at_producer.process.kill()
        self.maybe |= self.pending
        self.pending = set()
        self.restart_producer()

    @precondition(lambda self: self.position)
    @rule()
    def kill_consumer(self) -> None:
        self.at_consumer.process.kill()
        self.restart_consumer(clean=False)

    # --- writing ---

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 9), flush=st.booleans())
    def send(self, partition: int, count: int, flush: bool) -> None:
        log, pending, maybe = self.log, self.pending, self.maybe

        def delivered(error: KafkaError | None, message: Message) -> None:
            value = str(message.value(), "utf-8")
            pending.discard(value)
            if error is None:
                assert log[partition].setdefault(int(message.offset() or 0), value) == value
            elif token_in(error):
                maybe.add(value)
            else:
                self.failed.add(value)

        def produce() -> None:
            for _ in range(count):
                self.sent += 1
                pending.add(f"v{self.sent}")
                self.producer.produce(
                    TOPIC, f"v{self.sent}", partition=partition, on_delivery=delivered
                )

        self.world.run(produce, self.at_producer)
        if flush:
            self.flushed()

    @rule()
    @precondition(lambda self: self.pending)
    def flush(self) -> None:
        self.flushed()

    def flushed(self) -> None:
        assert self.world.run(lambda: self.producer.flush(600), self.at_producer) == 0
        assert not self.pending

    # --- reading ---

    @rule(count=st.integers(1, 20))
    def poll(self, count: int) -> None:
        self.read(count)

    def read(self, count: int) -> int:
        messages = self.world.run(lambda: self.consumer.consume(count, 3.0), self.at_consumer)
        for message in messages:
            assert message.error() is None
            _, partition, offset, value = seen(message)
            expected = self.position.get(partition)
            if expected is None:
                starts = self.committed.get(partition, {0})
                assert offset in starts, (
                    f"starts at {offset} of {partition}, though {starts} was committed"
                )
            else:
                assert offset == expected
            assert self.log[partition].setdefault(offset, value) == value
            self.position[partition] = offset + 1
        return len(messages)

    @rule(partition=st.integers(0, PARTITIONS - 1), back=st.integers(0, 10))
    def seek(self, partition: int, back: int) -> None:
        end = max(self.log[partition], default=-1) + 1
        offset = max(0, end - back) if back else 0
        self.world.run(
            lambda: self.consumer.seek(TopicPartition(TOPIC, partition, offset)), self.at_consumer
        )
        self.position[partition] = offset

    @precondition(lambda self: self.position)
    @rule()
    def commit(self) -> None:
        positions = dict(self.position)
        offsets = [
            TopicPartition(TOPIC, partition, offset) for partition, offset in positions.items()
        ]
        try:
            self.world.run(
                lambda: self.consumer.commit(offsets=offsets, asynchronous=False), self.at_consumer
            )
        except KafkaException:
            for partition, offset in positions.items():
                self.committed.setdefault(partition, {0}).add(offset)
        else:
            self.committed |= {partition: {offset} for partition, offset in positions.items()}

    # --- the world ---

    @precondition(lambda self: self.log)
    @rule()
    def delete_and_create(self) -> None:
        """Delete the topic and create it again: offsets start at 0, and no old record is in the new
        topic.
        """
        self.world.network.faults = Faults()
        self.flushed()
        machine = self.machine("administrator")
        admin = AdminClient({"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock)
        self.world.run(lambda: result_of(machine, admin.delete_topics([TOPIC])[TOPIC]), machine)
        self.create()
        self.log, self.committed = defaultdict(dict), {}
        self.maybe = set()
        self.restart_producer()
        self.restart_consumer(clean=False)

    @rule(seconds=SECONDS)
    def let_time_pass(self, seconds: float) -> None:
        machine = self.machine("idle")
        self.world.run(lambda: machine.clock.sleep(seconds), machine)

    @rule(seconds=SECONDS)
    def suspend_producer(self, seconds: float) -> None:
        self.at_producer.process.suspend(seconds)

    @rule(on=st.sampled_from([True, True, False]))
    def turn_faults(self, on: bool) -> None:
        self.world.network.faults = BAD if on else Faults()

    @invariant()
    def the_log_holds_what_was_acknowledged_once_and_nothing_that_failed(self) -> None:
        logged = places(self.world.network.disk)
        assert all(len(found) == 1 for found in logged.values())
        assert not self.failed & logged.keys()
        for partition, values in self.log.items():
            for offset, value in values.items():
                (place,) = logged[value]
                assert (place.partition, place.offset) == (partition, offset)


Model.TestCase.settings = settings(
    max_examples=depth(10, 30),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


TestModel = Model.TestCase
