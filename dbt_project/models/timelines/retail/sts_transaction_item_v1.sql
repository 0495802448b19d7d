{#- Written by `lakehouse scaffold`, its own while unchanged: d3cf3fc63a1e0d7d -#}
{{ timeline(source_model='sts_transaction_item', src_pk='hk_transaction_item', src_hashdiff='hd_status') }}
