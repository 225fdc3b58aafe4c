"""What is measured: each module measures one subject, prints it and writes its records."""
