"""The demo: a shop's orders become invoices, stock bookings and e-mails while workers are killed and frozen.

Read in this order: handlers.py (the jobs), guard.py (the fence check in SQL), faults.py (what is done to the workers),
measure.py (how the outcome is counted), naive.py (the same without lease, fence and guard).
"""
