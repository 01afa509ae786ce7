"""Drawings and pages: learning curves, attention, parse trees and reports of one file.

Each function returns text (SVG or HTML) and writes nothing. Equal arguments give equal text.
"""
