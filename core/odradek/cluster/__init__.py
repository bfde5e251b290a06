"""What the brokers of a cluster agree on, kept in the coordinator.

* `image`: the state at one moment, as immutable values
* `keys`: how that state lies in the coordinator's keys
* `planner`: pure functions from an image to what should be written
* `view`: a broker's live image, fed by watches
* `topics`: creating, changing and deleting topics
"""
