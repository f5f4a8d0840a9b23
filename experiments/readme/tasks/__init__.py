"""What the pages say of models on small tasks (addition, hops, swaps), and of rules that stop the loop early."""
