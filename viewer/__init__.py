"""Call trees and runs on a terminal: `text` shows hostile text safely, `listing` lists runs."""
