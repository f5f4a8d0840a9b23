"""Where looping pays: p-hop induction by one and two looped layers, beside plain models of equal parameters and of equal FLOPs.

python -m experiments.hops.run OUT.jsonl --groups trial --workers 6 --seconds 300
python -m experiments.hops.tables OUT.jsonl FOLDER
"""
