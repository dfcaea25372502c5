module tenbin/real_client

go 1.24.0

require (
	github.com/coder/websocket v1.8.15
	github.com/eclipse/paho.golang v0.23.0
	github.com/tenbin-mqtt/tenbin/clients/go v0.0.0
)

require (
	github.com/gorilla/websocket v1.5.3 // indirect
	golang.org/x/net v0.43.0 // indirect
)

replace github.com/tenbin-mqtt/tenbin/clients/go => ../../../clients/go
