"""The STARS study (arXiv 2605.26733) on one GPU: what was published, repeated, and which part does the work.

python -m experiments.stars.run OUT.jsonl --groups main,ablation --workers 8 --seconds 540
python -m experiments.stars.tables OUT.jsonl … experiments/results/stars
"""
