"""From the node's own disk to shared storage: `items` says what is to be brought there, `transfer` brings one file,
`collect` makes a pass over all of it; `temporary` and `twins` clear away what killed passes left.
"""

from .collect import Report, collect
from .transfer import Pace

__all__ = ["Pace", "Report", "collect"]
