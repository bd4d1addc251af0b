"""The demo: a shop's orders become invoices, stock bookings and e-mails while workers are killed and frozen.

Read in this order: handlers.py (the jobs), faults.py (what is done to the workers), measure.py (how the outcome is
counted), books.py (what the ledger says of it), naive.py (the same without lease, fence and guard).
"""
