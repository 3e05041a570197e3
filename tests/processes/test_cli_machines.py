"""Commands for the kv machine and for a machine of one's own: every write prints its result or its refusal."""

from collections.abc import Iterator

import pytest

from quire.cluster.cli.output import Exit
from tests.processes.cluster import Cluster, Ended, ending_clusters, run_quire


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("kv")) as made:
        yield made.formed(flags=["--machine", "kv"])


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ending_clusters(tmp_path_factory.mktemp("stock")) as made:
        yield made.formed(flags=["--machine", "tests.processes.stock:Stock"])


def quire(cluster: Cluster, *arguments: str) -> Ended:
    return run_quire(*arguments, "--server", cluster.servers)


def test_every_write_prints_its_result_or_its_refusal(stock: Cluster) -> None:
    put = quire(stock, "apply", "--json", '["put", "nails", 3]')
    taken = quire(stock, "append", '["take", "nails", 1]')
    refused = [
        quire(stock, verb, *given, '["take", "nails", 30]') for verb, given in (("apply", ["--json"]), ("append", []))
    ]
    unknown = quire(stock, "append", '["steal", "nails", 1]')

    assert (put.code, put.stdout) == (Exit.DONE, '{"result": 3}\n')
    assert (taken.code, taken.stdout.split("\t")[1]) == (Exit.DONE, "2\n")
    for ended in refused:
        assert (ended.code, ended.stdout) == (Exit.FAILED, "")
        assert ended.stderr == "quire: the command was refused, TOO_FEW: there are only 2\n"
    assert (unknown.code, unknown.stdout) == (Exit.FAILED, "")
    assert "UNKNOWN" in unknown.stderr
    assert quire(stock, "query").stdout == '{"nails":2}\n'
    assert quire(stock, "query", '"nails"').stdout == "2\n"


@pytest.mark.full
def test_keys_and_values_are_text_as_it_stands_or_json(kv: Cluster) -> None:
    assert quire(kv, "put", "zip", "01234").stdout == "true\n"
    assert quire(kv, "put", "n", "null").stdout == "true\n"
    assert quire(kv, "put", "42", "x").stdout == "true\n"
    assert quire(kv, "put", "m", "--json", '{"moons": 2}').stdout == '{"result": true}\n'
    assert quire(kv, "apply", "incr", "visits", "41").stdout == "41\n"

    assert quire(kv, "get", "zip", "--json").stdout == '"01234"\n'
    assert quire(kv, "get", "n").stdout == "null\n"
    assert quire(kv, "get", "42").stdout == "x\n"
    assert quire(kv, "scan").stdout == '42\tx\nm\t{"moons":2}\nn\tnull\nvisits\t41\nzip\t01234\n'
    assert quire(kv, "scan", "v", "--json").stdout == '["visits",41]\n'
    some = quire(kv, "scan", "--count", "2")
    assert some.stdout == '42\tx\nm\t{"moons":2}\n'
    assert some.stderr == "quire: there are more keys; the next ones come with --after 'm'\n"
    assert quire(kv, "scan", "--after", "n").stdout == "visits\t41\nzip\t01234\n"


@pytest.mark.full
def test_a_key_that_is_not_there_is_not_found(kv: Cluster) -> None:
    assert quire(kv, "get", "absent") == (Exit.FAILED, "", "quire: there is no key 'absent'\n")
    assert quire(kv, "put", "x", "--json", "null").code == Exit.FAILED
    assert quire(kv, "put", "x", "--json", "text").code == Exit.USAGE


@pytest.mark.full
def test_read_without_arguments_prints_the_newest_records_and_says_what_it_leaves_out(kv: Cluster) -> None:
    kv.leader.apply(*(["put", f"key {number}", number] for number in range(30)))

    newest = quire(kv, "read")
    bounds = kv.leader.get("/index_bounds")
    all_of_them = quire(kv, "read", "--from", "0")

    assert [line.split("\t")[1] for line in newest.stdout.splitlines()] == [
        f'["put","key {number}",{number}]' for number in range(10, 30)
    ]
    last = newest.stderr.splitlines()[-1]
    assert last == f"quire: these are the newest of [0, {bounds['highest_index']}); `quire read --from 0` prints all"
    assert len(all_of_them.stdout.splitlines()) > 30
    assert "system records are not shown" in all_of_them.stderr
    assert quire(kv, "read", "--from", "5", "--to", "3").code == Exit.USAGE
