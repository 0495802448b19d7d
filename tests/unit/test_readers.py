"""What the command of a walsender says of the publications that it streams."""

import pytest

from ingestion.sources.postgres.setup.readers import streamed


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("""publication_names '"lakehouse"'""", {"lakehouse"}),
        ("""proto_version '1', publication_names '"a","b c", "d"', messages 'true'""", {"a", "b c", "d"}),
        ("publication_names 'dbz_Publication, other'", {"dbz_Publication", "other"}),
        (""""proto_version" '1', "publication_names" 'dbz'""", {"dbz"}),
        ('publication_names \'"it\'\'s ""one"""\'', {'it\'s "one"'}),
    ],
)
def test_the_publications_of_a_stream_are_those_of_its_command(given: str, names: set[str]) -> None:
    assert streamed(f'START_REPLICATION SLOT "s" LOGICAL 0/0 ({given})') == names


@pytest.mark.parametrize(
    "command",
    [
        "",
        "<insufficient privilege>",
        'CREATE_REPLICATION_SLOT "s" TEMPORARY LOGICAL pgoutput',
        """START_REPLICATION SLOT "s" LOGICAL 0/0 (publication_names '"one","and_so_on""",  # as the server cuts it off
        """START_REPLICATION SLOT "s" LOGICAL 0/0 (publication_names '"one" "two"')""",
        "SELECT * FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL, 'publication_names', '\"other\"')",
    ],
)
def test_a_command_that_does_not_tell_says_nothing(command: str) -> None:
    assert streamed(command) is None
