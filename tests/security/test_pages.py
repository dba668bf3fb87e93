"""Every command of the pages about security does what the page says."""

import pytest

from broker import launch
from pages import matches, run_page, with_free_ports


def test_secure_in_ten_minutes(tmp_path):
    run_page("secure-in-ten-minutes.md", tmp_path, with_free_ports("9092", "8883", "9093", "8443"))


def test_rules(tmp_path):
    flags = ["--listen", "", "--kafka-listen", "", "--http-listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    process, addresses = launch([*flags, "--set", 'security.super_users=["admin"]'], listeners=("http",))
    try:
        # The page uses the default address.
        api = "{}:{}".format(*addresses["http"])
        prelude = f"""
            mainstem() {{ command mainstem "$@" --broker {api}; }}
            echo secret | mainstem user add admin
            export MAINSTEM_USERNAME=admin MAINSTEM_PASSWORD=secret
        """
        run_page("rules.md", tmp_path, prelude=prelude)
    finally:
        process.terminate()
    assert process.wait(15) == 0


@pytest.mark.parametrize(("expected", "is_it"), [
    (["a", "b"], True), (["a"], False), (["a", "b", "c"], False), (["a", "…"], True), (["…", "b"], True),
    (["…"], True), (["…", "a"], False), (["a", "b…"], True), (["a", "c…"], False), (["…", "a", "…", "b", "…"], True),
])
def test_output_is_compared_line_by_line(expected, is_it):
    assert matches(["a", "b"], expected) == is_it


def test_a_wrong_page_fails(tmp_path):
    background = "$ (trap 'exit 3' TERM; touch ready; while :; do sleep 0.1; done) &\n$ until [ -e ready ]; do :; done"
    wrong = [("$ false", "exit status 1"), ("$ echo 1\n2", "is not"), (background, "background 3")]
    for number, (block, what) in enumerate(wrong):
        page = tmp_path / f"{number}.md"
        page.write_text(f"```console\n{block}\n```\n")
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(AssertionError, match=what):
            run_page(str(page), folder)
