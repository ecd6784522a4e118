"""Room 5, telling: `findings` holds what is known; every renderer is a function from a report to text."""
