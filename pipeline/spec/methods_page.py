"""The first part of the documentation's page of methods; `pfl methods --markdown` prints the rest."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.spec.paths import table_names
from pipeline.spec.table import load_table

INTRODUCTION = """\
# Methods

Printed by `pfl methods --markdown` (`make docs`): what a method mixes, keeps and sends is observed in a few
rounds with its defaults. A method's rule, and what differs from its authors', are the docstring of its class.

The default of every option is the authors' rule, from their paper and their code; where the two differ, the
text says which one it is. In every method the participants are sampled uniformly, averages are weighted by
the participants' training samples, and the running statistics of batch norm are averaged like the weights
beside them (`bn_stats`), unless the method says otherwise. FL-bench and PFLlib are the public benchmarks that
other work compares with.

- *Mixed* says how each part of the model is aggregated. *Average*: one value for all clients. *Personal*:
  each client keeps its own. *Personalised aggregation*: each client gets its own weighted mean of the
  clients' tensors, or of their changes. *Server-generated*: none of these.
- *Own state* is what the method keeps beside the models, at the server or the clients, or sends to them.
- *Model sizes down, up* are the numbers sent to and from a participant in a round, in units of a model's.

Considered and not implemented: pFedLA (Ma et al., CVPR 2022), because the authors' code was not found, and
the only other implementation (`KarhouTam/pFedLA`) takes the client's change with the opposite sign of
pFedHN's code as the server's gradient, so no rule could be checked; and FedDPA (Yang et al., NeurIPS 2024),
which trains low-rank adapters beside a frozen language model, which no network here has.
"""


def uses() -> Mapping[str, list[str]]:
    """Method to the papers' tables that have a row of it, as in "pFedSim, Table 3"; studies do not count."""
    by_method: dict[str, list[str]] = {}
    for name in table_names():
        table = load_table(name)
        if table.published and name == f"{table.published.paper}-table{table.published.table}":
            for method in {row.method: None for row in table.methods}:
                by_method.setdefault(method, []).append(table.title)
    return {method: sorted(by_method[method]) for method in sorted(by_method)}


def page() -> str:
    """The introduction, and the papers' tables by method."""
    rows = "\n".join(f"| `{method}` | {'<br>'.join(tables)} |" for method, tables in uses().items())
    return f"{INTRODUCTION}\n## In the papers' tables\n\n| method | tables |\n| --- | --- |\n{rows}\n"


if __name__ == "__main__":
    print(page())
