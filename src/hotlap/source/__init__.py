"""Reading and rewriting Python text. Knows no technique, and imports nothing of hotlap but its errors."""
