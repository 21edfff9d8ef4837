"""What our pages have in common: one look, and a policy under which nothing runs but what we wrote."""
