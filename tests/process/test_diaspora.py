"""What a program for Mofka's Python interface may rely on: drivers, topics, producers, consumers, views and rules, in
every spelling that published scripts use."""

import gc
import json
import pickle
import threading
import time
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from millstream.diaspora import IgnoredOption, api, mofka
from waits import moment, until

pytestmark = pytest.mark.process

WAIT_MS = 120_000


@pytest.fixture(scope="module")
def server(broker):
    return SimpleNamespace(address=broker.bootstrap)


@pytest.fixture(scope="module")
def driver(server):
    return api.Driver(backend="mofka:libmofka.so", options={"bootstrap": server.address})


_numbers = iter(range(1000))


@pytest.fixture
def topic(driver):
    name = f"topic{next(_numbers)}"
    driver.create_topic(name)
    return driver.open_topic(name)


# -- drivers and topics ------------------------------------------------------------------------------------------------


def test_a_driver_is_made_by_its_backend_in_both_spellings(server):
    for make in (api.Driver, api.Driver.new):
        assert isinstance(make("millstream", {"bootstrap": server.address}), api.Driver)


def test_an_unknown_backend_and_missing_addresses_are_errors(tmp_path):
    for backend, options in (("unknown", {"bootstrap": "h:1"}), ("mofka", {}), ("mofka", {"group_file": "/none"})):
        with pytest.raises(api.Exception):
            api.Driver(backend=backend, options=options)
    with pytest.raises(RuntimeError, match="host:port"):
        api.Driver("mofka", {"bootstrap": "nonsense"})


def test_a_topic_is_created_opened_listed_and_exists_only_then(driver):
    assert not driver.topic_exists("some_topic")
    with pytest.raises(api.Exception, match="no event topic"):
        driver.open_topic("some_topic")
    driver.create_topic("some_topic", options={"num_partitions": 2})
    assert driver.topic_exists("some_topic")
    assert isinstance(driver.open_topic("some_topic"), api.TopicHandle)
    assert driver.open_topic(topic_name="some_topic").name == "some_topic"
    assert driver.list_topics()["some_topic"]["partitions"] == 2
    driver.delete_topic("some_topic")
    assert not driver.topic_exists("some_topic")


def test_the_configuration_of_partitions_is_the_topics(driver, server):
    config = {"type": "default", "partition": {"max_events_per_chunk": 7, "fd_cache_capacity": 3}}
    driver.create_topic("configured", options={"num_partitions": 1, "config": config})
    admin = AdminClient({"bootstrap.servers": server.address})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "configured")
    (stored,) = [future.result(60)["events.partition"].value for future in admin.describe_configs([resource]).values()]
    assert json.loads(stored) == config["partition"]
    with pytest.raises(api.Exception, match="max_events_per_chunk is 0"):
        driver.create_topic("wrong", options={"config": {"partition": {"max_events_per_chunk": 0}}})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda driver, _: api.Driver("mofka", driver.options | {"margo": {}}), "Driver: margo has no effect"),
        (
            lambda driver, name: driver.create_topic(name + "d", options={"dependencies": {}}),
            "dependencies has no effect",
        ),
        (
            lambda driver, name: driver.create_topic(name + "m", options={"config": {"type": "memory"}}),
            "type has no effect",
        ),
        (lambda driver, name: driver.create_topic(name + "t", options={"num_partitons": 2}), "num_partitons has no"),
        (lambda driver, name: driver.open_topic(name).producer(options={"ack_early": True}), "ack_early has no effect"),
        (lambda driver, name: driver.open_topic(name).consumer("o", options={"prefetch": 1}), "store does not know it"),
    ],
)
def test_an_option_without_effect_warns_in_words(driver, topic, call, said):
    with pytest.warns(IgnoredOption, match=said):
        call(driver, topic.name)


def test_a_topic_that_exists_is_not_created_again(driver, topic):
    with pytest.raises(api.Exception, match="already exists"):
        driver.create_topic(topic.name)


def test_rules_are_stored_with_the_topic(driver, server):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    driver.create_topic(
        "ruled",
        validator=api.Validator.from_metadata(type="schema", schema=schema),
        partition_selector=api.PartitionSelector.from_metadata({"type": "key"}, key="n"),
        serializer=api.Serializer.from_metadata({"type": "schema", "schema": schema}),
    )
    other = api.Driver("mofka", {"bootstrap": server.address}).open_topic("ruled")
    with pytest.raises(api.Exception, match="required"):
        other.producer("p").push({})
    assert other.producer("p").push({"n": 1}).wait() == 0


def test_thread_pools_are_handed_out(driver):
    assert isinstance(driver.default_thread_pool, api.ThreadPool)
    with pytest.warns(IgnoredOption, match="count has no effect: callbacks run on threads of the client"):
        assert isinstance(driver.make_thread_pool(1), api.ThreadPool)
    assert mofka.ThreadPool(3).thread_count == 3


def test_partitions_of_a_topic_are_described(driver):
    driver.create_topic("parts", options={"num_partitions": 3})
    partitions = driver.open_topic("parts").partitions
    assert [one["partition"] for one in partitions] == [0, 1, 2]
    assert len({one["uuid"] for one in partitions}) == 3


def test_a_driver_travels_to_another_process(driver):
    assert pickle.loads(pickle.dumps(driver)).list_topics() == driver.list_topics()


def test_two_handles_of_a_topic_are_equal(driver, topic):
    assert driver.open_topic(topic.name) == topic
    assert len({driver.open_topic(topic.name), topic}) == 1


# -- producers ---------------------------------------------------------------------------------------------------------


def test_a_producer_says_what_it_was_made_of(driver, topic):
    pool = driver.default_thread_pool
    producer = topic.producer(
        "p", batch_size=32, max_num_batches=4, thread_pool=pool, options={}, ordering=api.Ordering.Loose
    )
    found = (producer.name, producer.topic, producer.thread_pool, producer.batch_size, producer.max_num_batches)
    assert found == ("p", topic, pool, 32, 4)
    assert topic.producer("q", 16, pool, api.Ordering.Strict).batch_size == 16


def test_events_without_data_get_dense_ids(topic):
    producer = topic.producer("p")
    assert [producer.push({"i": i}).wait(timeout_ms=WAIT_MS) for i in range(5)] == list(range(5))
    futures = [producer.push(metadata) for metadata in ({"i": 5}, '{"i": 6}', [7], 8, None)]
    producer.flush()
    assert [one.wait(WAIT_MS) for one in futures] == [5, 6, 7, 8, 9]
    assert futures[0].completed
    assert futures[0].completed()
    assert producer.flush().wait() is None


@pytest.mark.parametrize("kind", ["array", "numpy", "list", "memoryview"])
def test_typed_buffers_keep_all_of_their_bytes(topic, kind):
    from array import array

    numpy = pytest.importorskip("numpy")
    given = {
        "array": array("d", [1, 2, 3]),
        "numpy": numpy.arange(3, dtype=numpy.float64) + 1,
        "list": [array("d", [1, 2]).tobytes(), bytearray(array("d", [3]).tobytes())],
        "memoryview": memoryview(array("d", [1, 2, 3])),
    }[kind]
    producer = topic.producer()
    future = producer.push({}, given)
    del given
    gc.collect()
    future.wait(WAIT_MS)
    topic.mark_as_complete()
    (event,) = list(topic.consumer("c"))
    assert array("d", b"".join(event.data)).tolist() == [1, 2, 3]


# -- consumers ---------------------------------------------------------------------------------------------------------


def test_a_consumer_says_what_it_was_made_of(topic):
    consumer = topic.consumer("c")
    assert (consumer.name, consumer.topic) == ("c", topic)
    assert consumer.thread_pool is not None
    assert consumer.batch_size > 0
    assert consumer.max_num_batches > 0


def produced(topic, count, data=lambda n: b""):
    producer = topic.producer("p")
    for n in range(count):
        producer.push({"index": n}, data(n))
    producer.flush().wait()
    topic.mark_as_complete()


def test_iteration_ends_with_a_completed_topic(topic):
    produced(topic, 10)
    seen = 0
    for event in topic.consumer("c"):
        assert (event.event_id, event.metadata["index"]) == (seen, seen)
        assert event.partition["partition"] == 0
        event.acknowledge()
        seen += 1
    assert seen == 10
    assert list(topic.consumer("c")) == []


def test_a_pull_behind_the_last_event_has_no_id(topic):
    produced(topic, 3)
    consumer = topic.consumer("c")
    assert [consumer.pull().wait().event_id for _ in range(4)] == [0, 1, 2, None]
    assert consumer.pull().wait(timeout_ms=WAIT_MS).event_id is None


@pytest.mark.parametrize("word", ["data_allocator", "data_broker"])
def test_selector_and_allocator_of_the_program(topic, word):
    produced(topic, 2, lambda n: b"hello world")
    buffers = []

    def allocate(metadata, descriptor):
        buffers.append(bytearray(descriptor.size))
        return [buffers[-1]]

    consumer = topic.consumer(
        "c", **{"data_selector": lambda _, one: one.make_sub_view(offset=6, size=5), word: allocate}
    )
    event = next(iter(consumer))
    assert isinstance(event.data, list)
    assert event.data[0] is buffers[0]
    assert buffers[0] == b"world"
    ready = api.FullDataSelector, api.ByteArrayAllocator
    assert [bytes(one.data[0]) for one in topic.consumer("d", *ready)] == [b"hello world"] * 2
    with pytest.raises(api.Exception, match="come together"):
        topic.consumer("e", data_selector=api.FullDataSelector)


def test_process_calls_a_function_with_each_event(topic):
    produced(topic, 5)
    seen = []
    assert topic.consumer("c").process(lambda one: seen.append(one.event_id), max_events=3) == 3
    assert topic.consumer("d").process(lambda one: seen.append(one.event_id), timeout_ms=WAIT_MS) == 5
    assert seen == [0, 1, 2, 0, 1, 2, 3, 4]


def test_a_wait_of_more_than_two_seconds_waits_as_long(topic):
    consumer = topic.consumer("c")
    began = time.monotonic()
    assert consumer.pull().wait(timeout_ms=2300) is None
    assert time.monotonic() - began > 2.2


@pytest.mark.parametrize("producers_count", [1, 3])
@pytest.mark.parametrize("slow", [False, True])
def test_events_of_concurrent_producers_all_arrive_through_short_waits(topic, producers_count, slow):
    each = 20
    errors = []

    def produce(number):
        try:
            producer = topic.producer(f"p{number}")
            for n in range(each):
                producer.push({"producer": number, "index": n}).wait(timeout_ms=WAIT_MS)
            producer.flush().wait(timeout_ms=WAIT_MS)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    consumer = topic.consumer("c")
    threads = [threading.Thread(target=produce, args=(number,)) for number in range(producers_count)]
    for thread in threads:
        thread.start()
    seen = []
    while len(seen) < each * producers_count and not errors:
        event = consumer.pull().wait(timeout_ms=3)
        if event:
            seen.append((event.metadata["producer"], event.metadata["index"]))
            if slow:
                moment(0.002)
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(seen) == [(number, n) for number in range(producers_count) for n in range(each)]
    for number in range(producers_count):
        assert [n for one, n in seen if one == number] == list(range(each))


def test_a_dropped_consumer_stops_feeding(topic, server):
    consumer = topic.consumer("c")
    inner = consumer._consumer
    del consumer
    gc.collect()
    until(lambda: all(task.done() for task in inner._feeds.values()), "it still feeds")


# -- views -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def descriptor():
    return api.DataDescriptor("somewhere", 1024)


def test_a_descriptor_has_size_and_location(descriptor):
    assert (descriptor.size, descriptor.location) == (1024, "somewhere")
    assert (api.DataDescriptor().size, api.DataDescriptor().location) == (0, "")
    assert descriptor.flatten() == [(0, 1024)]


def test_a_sub_view_keeps_the_location_and_ends_with_the_data(descriptor):
    view = descriptor.make_sub_view(offset=100, size=200)
    assert isinstance(view, api.DataDescriptor)
    assert (view.size, view.location, view.flatten()) == (200, "somewhere", [(100, 200)])
    assert descriptor.make_sub_view(900, 200).size == 124
    assert descriptor.make_sub_view(1200, 200).size == 0


def test_a_stride_view_has_both_spellings_and_needs_no_gap_behind_it(descriptor):
    view = descriptor.make_stride_view(offset=0, num_blocks=4, block_size=64, gap_size=192)
    assert (view.size, view.location) == (256, "somewhere")
    assert descriptor.make_strided_view(0, numblocks=4, blocksize=64, gapsize=192).flatten() == view.flatten()
    assert descriptor.make_stride_view(0, 2, 512, 0).flatten() == [(0, 1024)]
    assert descriptor.make_stride_view(0, 2, 256, 512).flatten() == [(0, 256), (768, 256)]
    with pytest.raises(TypeError):
        descriptor.make_stride_view(0, 2, 256)


def test_a_stride_view_beyond_the_data_is_an_error(descriptor):
    with pytest.raises(api.Exception):
        descriptor.make_stride_view(offset=0, num_blocks=4, block_size=128, gap_size=192)


def test_an_unstructured_view_has_its_ranges(descriptor):
    view = descriptor.make_unstructured_view(segments=[(0, 100), (200, 100), (400, 100)])
    assert (view.size, view.location) == (300, "somewhere")
    assert view.flatten() == [(0, 100), (200, 100), (400, 100)]


@pytest.mark.parametrize("segments", [[(0, 100), (1000, 200)], [(0, 200), (100, 200)], [(200, 10), (0, 10)]])
def test_an_unstructured_view_beyond_the_data_or_overlapping_is_an_error(descriptor, segments):
    with pytest.raises(api.Exception):
        descriptor.make_unstructured_view(segments)


def test_views_stack_relative_to_each_other(descriptor):
    assert descriptor.make_sub_view(100, 200).make_sub_view(50, 20).flatten() == [(150, 20)]
    rows = descriptor.make_sub_view(128, 512).make_stride_view(8, 4, 16, 48)
    assert rows.flatten() == [(136, 16), (200, 16), (264, 16), (328, 16)]


# -- rules -------------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "number"}}}


@pytest.mark.parametrize("cls", [api.Validator, api.Serializer, api.PartitionSelector])
@pytest.mark.parametrize("description", [{}, {"type": "default"}])
def test_the_default_rules_are_made_from_objects_and_keywords(cls, description):
    assert isinstance(cls.from_metadata(description), cls)
    assert isinstance(cls.from_metadata(**description), cls)


@pytest.mark.parametrize("cls", [api.Validator, api.Serializer, api.PartitionSelector])
def test_an_unknown_type_of_rule_is_an_error(cls):
    with pytest.raises(api.Exception, match="unknown"):
        cls.from_metadata({"type": "unknown"})


@pytest.mark.parametrize("cls", [api.Validator, api.Serializer])
def test_rules_with_a_schema(cls):
    assert isinstance(cls.from_metadata({"type": "schema", "schema": SCHEMA}), cls)
    with pytest.raises(api.Exception):
        cls.from_metadata({"type": "schema"})
    with pytest.raises(ValueError, match="is an object"):
        cls.from_metadata({"type": "schema", "schema": "not-an-object"})


def test_rules_with_a_pattern():
    pattern = {"source": ["my.app"], "detail-type": ["my-event"]}
    assert isinstance(api.Validator.from_metadata({"type": "eventbridge", "schema": pattern}), api.Validator)
    for description in ({"type": "eventbridge"}, {"type": "eventbridge", "schema": "not-an-object"}):
        with pytest.raises(api.Exception):
            api.Validator.from_metadata(description)


# -- the older module --------------------------------------------------------------------------------------------------


def test_a_script_for_the_older_client_runs(server, tmp_path):
    group = tmp_path / "mofka.json"
    group.write_text(json.dumps({"members": [{"address": f"tcp://{server.address}", "provider_id": 0}]}))
    with pytest.warns(IgnoredOption, match="Driver: use_progress_thread has no effect"):
        driver = mofka.MofkaDriver(str(group), use_progress_thread=True)
    driver.start_progress_thread()
    assert driver.num_servers == 1
    name = "interchange"
    if not driver.topic_exists(name):
        driver.create_topic(name, schema={"type": "object"})
        driver.add_memory_partition(name, 0)
    with pytest.raises(mofka.ClientException):
        driver.add_default_partition("none", 0)
    with pytest.warns(IgnoredOption, match="config has no effect: a partition's configuration belongs to create_topic"):
        driver.add_default_partition(name, 0, driver.add_default_metadata_provider(0))
    topic = driver.open_topic(name)
    with pytest.warns(IgnoredOption, match="producer: thread_pool has no effect"):
        producer = topic.producer("p", 4, mofka.ThreadPool(1), mofka.Ordering.Strict)
    for n in range(6):
        producer.push({"n": n})
    producer.flush()
    with pytest.warns(IgnoredOption, match="consumer: thread_pool has no effect"):
        consumer = topic.consumer(name="c", thread_pool=mofka.ThreadPool(1))
    assert [consumer.pull().wait().metadata["n"] for _ in range(6)] == list(range(6))
    with pytest.warns(IgnoredOption, match="Driver: use_progress_thread has no effect"):
        again = pickle.loads(pickle.dumps(driver))
    assert isinstance(again, mofka.MofkaDriver)
    assert again.topic_exists(name)
