"""The pages that are generated from the recorded results: tables, figures, the results in the README, the cards of the zoo."""
