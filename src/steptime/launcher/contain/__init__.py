"""What keeps a process of a trial from changing the user's files: two scripts that become the user's command."""
