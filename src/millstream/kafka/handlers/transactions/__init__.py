"""APIs of transactions and their producers."""
