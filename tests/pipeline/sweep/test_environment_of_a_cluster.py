"""Clusters that a sweep refuses to join."""

from __future__ import annotations

import subprocess

import pytest

from tests.pipeline.services import NO_TOKEN, TOKEN, Cluster, without

pytestmark = pytest.mark.slow


def refused(process: subprocess.Popen[str]) -> str:
    """What a sweep has said that ended with one line."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2, output
    assert "Traceback" not in output
    return output


def test_a_cluster_that_does_not_answer_is_one_line(start):
    output = refused(start(RAY_ADDRESS="127.0.0.1:1"))
    assert "RAY_ADDRESS: 127.0.0.1:1 is not accepted; expected the address of a running cluster" in output


def test_a_cluster_that_anybody_may_use_is_refused(start, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), NO_TOKEN) as open_to_all:
        output = refused(start(RAY_ADDRESS=open_to_all.address, **TOKEN))
    assert "expected a cluster started with RAY_AUTH_MODE=token (see docs/cluster.md)" in output


def test_a_wrong_token_and_nodes_without_the_folder_are_told(start, tmp_path_factory, prepared):
    with Cluster(tmp_path_factory.mktemp("cluster")) as joined:
        wrong = start(RAY_ADDRESS=joined.address, **{**TOKEN, "RAY_AUTH_TOKEN": "0" * 64})
        assert "expected a cluster that accepts this user's token" in refused(wrong)
        elsewhere = without(prepared)
        if not elsewhere:
            pytest.skip("this machine hides no folder from a process")
        joined.add_node(*elsewhere)
        output = refused(start(RAY_ADDRESS=joined.address, **TOKEN))
    assert f"expected one with the folder {prepared} of the sweep, on storage that all nodes share" in output
