"""An HTTP service in front of live fleets: any server, in any language, and devices that check in."""
