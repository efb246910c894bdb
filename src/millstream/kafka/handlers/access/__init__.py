"""APIs of logins, users and access control entries."""
