"""The families of methods: the values of `Method.family`, used only in lists and the documentation."""

from __future__ import annotations

FAMILIES = {
    "baseline": "No personalisation, or no federation.",
    "local objective": "One global model; the clients' local objective keeps them from drifting apart.",
    "server optimisation": "One global model; the server does more than average.",
    "personal layers": "Clients share a part of the network and keep the rest to themselves.",
    "personal model": "Clients train their own model in addition to the global one.",
    "mixing": "Each client gets its own mixture of the clients' models.",
    "hypernetwork": "A network on the server generates each client's model.",
    "knowledge transfer": "Features, class prototypes, generators or predictions teach the clients.",
    "clustering": "Clients in groups that share a model.",
    "meta-learning": "One global model that a few local steps personalise.",
    "asynchronous": "Some clients' models arrive rounds later.",
    "other": "Methods without a family.",
}
"""Maps the name of a family to what its methods have in common, in the order of the documentation."""
