"""To be written."""

from __future__ import annotations

from fastapi import APIRouter

from fencepost.api.service import Service

__all__ = ["add_routes"]


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes of this part."""
