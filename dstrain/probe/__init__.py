"""Floor 6: facts of the world, the host and the model. Importing it loads no torch; `host_facts` does when called."""

from dstrain.probe.host import host_facts
from dstrain.probe.model import model_facts
from dstrain.probe.world import world_facts

__all__ = ["host_facts", "model_facts", "world_facts"]
