"""Who reads what in Trino: what models and declarations say of it, and the rules that follow."""
