"""From a log or a record to verdict, incidents, causes, plan and timeline.

Rendering is in `report`.
"""
