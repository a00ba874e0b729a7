package types

import "time"

// CallHour is the answer of GET /v1/calls.
type CallHour struct {
	// Minutes are the last 60, the oldest first, and Hour is all of them together.
	Minutes []CallMinute `json:"minutes"`
	Hour    CallMinute   `json:"hour"`
}

// CallMinute is what calls came to that ended in a minute.
type CallMinute struct {
	BeganAt time.Time  `json:"beganAt"`
	Calls   int        `json:"calls"`
	Refused int        `json:"refused"`
	Ways    []WayTimes `json:"ways"`
}

// WayTimes are the times of calls that came to their container by one way: warm, frozen, pooled or cold.
type WayTimes struct {
	Way   string `json:"way"`
	Calls int    `json:"calls"`
	// Start is until the command was handed over, FirstByte until it printed something, and End until all was over.
	Start     Percentiles `json:"start"`
	FirstByte Percentiles `json:"firstByte"`
	End       Percentiles `json:"end"`
}

// Percentiles are times to a fifth, in milliseconds; 0 for none.
type Percentiles struct {
	P50Ms float64 `json:"p50Ms"`
	P95Ms float64 `json:"p95Ms"`
}

// CallOutput is the answer of GET /v1/sandboxes/{id}/calls/{callId}/output.
type CallOutput struct {
	Output string `json:"output"`
	// Cut says that there was more before.
	Cut bool `json:"cut"`
}

// DoctorReport is the answer of GET /v1/doctor.
type DoctorReport struct {
	Findings []DoctorFinding `json:"findings"`
	// Settings are those in force.
	Settings []Setting `json:"settings"`
}

// DoctorFinding is what one check of the host has found.
type DoctorFinding struct {
	Check string `json:"check"`
	// Level is ok, warning, fault, or skipped, where it cannot be known.
	Level  string `json:"level"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

// Setting is one of settings.json.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"` // as JSON, the begin of it if it is long
	// Live says that a change takes effect without a restart, and Pending that one was read which waits for that.
	Live    bool `json:"live"`
	Pending bool `json:"pending"`
}
