"""One table of 100,000 employees: five more are hired, all five get one salary, and leave again."""
