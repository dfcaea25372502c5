module tenbin/real_client

go 1.24.0

require (
	github.com/coder/websocket v1.8.15
	github.com/eclipse/paho.golang v0.23.0
)
