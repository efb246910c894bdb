"""Mofka's interface has a list of cases that any implementation has to pass; here is which test of ours plays each.

The cases are those of the published suites, in our words: 40 that were counted one by one, and four of later versions
that are known by what they are about. Nothing here plays a case: a name that is no test, or a case without one, fails.
"""

import ast
from pathlib import Path

import pytest

CASES = {
    "driver and topics": {
        "a driver is made": "test_a_driver_is_made_by_its_backend_in_both_spellings",
        "a made driver is a driver": "test_a_driver_is_made_by_its_backend_in_both_spellings",
        "an unknown library is an error": "test_an_unknown_backend_and_missing_addresses_are_errors",
        "an unknown name is an error": "test_an_unknown_backend_and_missing_addresses_are_errors",
        "a topic is created and opened": "test_a_topic_is_created_opened_listed_and_exists_only_then",
        "topics are listed": "test_a_topic_is_created_opened_listed_and_exists_only_then",
        "there is a default thread pool": "test_thread_pools_are_handed_out",
        "a thread pool is made": "test_thread_pools_are_handed_out",
        "a topic has a name and partitions": "test_partitions_of_a_topic_are_described",
    },
    "producers": {
        "a producer has its arguments": "test_a_producer_says_what_it_was_made_of",
        "events without data are pushed": "test_events_without_data_get_dense_ids",
    },
    "consumers": {
        "a consumer has its arguments": "test_a_consumer_says_what_it_was_made_of",
        "events are iterated to the end": "test_iteration_ends_with_a_completed_topic",
        "a pull behind the end has no id": "test_a_pull_behind_the_last_event_has_no_id",
        "selector and allocator are called": "test_selector_and_allocator_of_the_program",
    },
    "both at once": {
        "one producer, one consumer": "test_events_of_concurrent_producers_all_arrive_through_short_waits",
        "a slow consumer": "test_events_of_concurrent_producers_all_arrive_through_short_waits",
        "several producers": "test_events_of_concurrent_producers_all_arrive_through_short_waits",
    },
    "descriptors": {
        "size and location, also of an empty one": "test_a_descriptor_has_size_and_location",
        "ranges of a whole descriptor": "test_a_descriptor_has_size_and_location",
        "a sub view": "test_a_sub_view_keeps_the_location_and_ends_with_the_data",
        "a sub view beyond the end": "test_a_sub_view_keeps_the_location_and_ends_with_the_data",
        "a stride view": "test_a_stride_view_has_both_spellings_and_needs_no_gap_behind_it",
        "a stride view beyond the end": "test_a_stride_view_beyond_the_data_is_an_error",
        "an unstructured view": "test_an_unstructured_view_has_its_ranges",
        "ranges of a view": "test_an_unstructured_view_has_its_ranges",
        "an unstructured view beyond the end": "test_an_unstructured_view_beyond_the_data_or_overlapping_is_an_error",
        "overlapping ranges": "test_an_unstructured_view_beyond_the_data_or_overlapping_is_an_error",
        "a view of a view": "test_views_stack_relative_to_each_other",
    },
    "rules": {
        "the default validator of nothing": "test_the_default_rules_are_made_from_objects_and_keywords",
        "the default validator by type": "test_the_default_rules_are_made_from_objects_and_keywords",
        "a schema validator": "test_rules_with_a_schema",
        "a schema validator of no schema": "test_rules_with_a_schema",
        "a pattern validator": "test_rules_with_a_pattern",
        "a pattern validator of no pattern": "test_rules_with_a_pattern",
        "an unknown validator": "test_an_unknown_type_of_rule_is_an_error",
        "the default serializer of nothing": "test_the_default_rules_are_made_from_objects_and_keywords",
        "the default serializer by type": "test_the_default_rules_are_made_from_objects_and_keywords",
        "a schema serializer": "test_rules_with_a_schema",
        "a schema serializer of no schema": "test_rules_with_a_schema",
        "an unknown serializer": "test_an_unknown_type_of_rule_is_an_error",
        "the default selector of nothing": "test_the_default_rules_are_made_from_objects_and_keywords",
        "the default selector by type": "test_the_default_rules_are_made_from_objects_and_keywords",
        "an unknown selector": "test_an_unknown_type_of_rule_is_an_error",
    },
}
COUNTS = {"driver and topics": 9, "producers": 2, "consumers": 4, "both at once": 3, "descriptors": 11, "rules": 15}


def defined_tests():
    source = (Path(__file__).parents[2] / "process" / "test_diaspora.py").read_text()
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("suite", CASES)
def test_every_case_of_a_suite_is_played_by_a_test_that_asserts(suite):
    tests = defined_tests()
    assert len(CASES[suite]) == COUNTS[suite]
    for case, name in CASES[suite].items():
        assert name in tests, f"{case}: there is no {name}"
        body = list(ast.walk(tests[name]))
        asserts = any(isinstance(node, ast.Assert) for node in body)
        raises = any(isinstance(node, ast.Attribute) and node.attr == "raises" for node in body)
        assert asserts or raises, f"{case}: {name} asserts nothing"
        skipped = [ast.unparse(one) for one in tests[name].decorator_list if "skip" in ast.unparse(one)]
        assert not skipped, f"{case}: {name} is skipped"


def test_there_are_44_cases():
    assert sum(map(len, CASES.values())) == 44
