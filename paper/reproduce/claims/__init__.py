"""The paper's claims, our evidence for each of them, and the verdict of one judge."""
