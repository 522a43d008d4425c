"""What a client does."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from images_app.task import Net, load_data, test
from images_app.task import train as train_net

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = load_data(context.node_config["partition-id"], context.run_config["batch-size"])
    train_net(net, loader, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"accuracy": test(net), "num-examples": 1})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
