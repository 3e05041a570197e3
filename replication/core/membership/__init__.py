"""How the cluster forms (`formation`, rule 0), and how its members change (`changing`, rule 15)."""
